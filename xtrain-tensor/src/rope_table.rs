//! The cosines and sines of rotary embeddings: one table, which every path reads.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::dd::Dd;
use crate::gpu::{self, At, Gpu};
use crate::portable::{self, MAX_ANGLE};
use crate::rope_scaling::RopeScaling;
use crate::{Device, Error, Result};

/// Positions that are computed together.
const BLOCK: usize = 256;

/// cos and sin of f64(pos) * `inv[i]`, each the nearest f32, with `inv[i]` the f64 nearest to
/// theta^(-2i / head_dim).
///
/// inv is formed in double-double, the angle is one f64 product, and sine and cosine are ours: no
/// platform's libm has a say in a bit. Rows are made on first use, in blocks of 256 positions; reading
/// takes no lock. Cloning shares the table.
#[derive(Clone)]
pub struct RopeTable {
    shared: Arc<Shared>,
}

struct Shared {
    inverse_frequencies: Vec<f64>,
    /// What cosines and sines are multiplied by.
    amplitude: f64,
    max_positions: usize,
    /// Per position: its cosines, then its sines.
    blocks: Vec<OnceLock<Box<[f32]>>>,
    copies: Mutex<Vec<GpuCopy>>,
}

/// What a GPU has of a table.
struct GpuCopy {
    addresses: gpu::Buffer,
    blocks: BTreeMap<usize, gpu::Buffer>,
}

impl RopeTable {
    /// The largest number of positions: 0 ..= 2^20.
    pub const MAX_POSITIONS: usize = (1 << 20) + 1;
    /// The largest head size.
    pub const MAX_HEAD_DIM: usize = 256;

    /// The table of heads of `head_dim` values at positions below `max_positions`.
    ///
    /// # Errors
    /// A head size that is odd, 0 or above 256; a theta that is not a positive normal number; positions
    /// that are none or more than 2^20 + 1; a theta below 1 so small that angles leave the range.
    pub fn new(theta: f64, head_dim: usize, max_positions: usize) -> Result<RopeTable> {
        Self::scaled((theta, &RopeScaling::Default), head_dim, max_positions)
    }

    /// [`RopeTable::new`] with scaled frequencies, and with cosines and sines times YaRN's factor: one f64
    /// product, then the nearest f32.
    ///
    /// # Errors
    /// As [`RopeTable::new`]; numbers that the scaling refuses.
    pub fn scaled(
        (theta, scaling): (f64, &RopeScaling),
        head_dim: usize,
        max_positions: usize,
    ) -> Result<RopeTable> {
        if head_dim == 0 || head_dim % 2 == 1 || head_dim > Self::MAX_HEAD_DIM {
            return refuse("an even head_dim in 2..=256", head_dim);
        }
        if !theta.is_normal() || theta < 0.0 {
            return refuse("a theta that is finite and above 0", theta);
        }
        let log_theta = Dd::log(theta);
        let power = |i: usize| Dd::from(-2.0 * i as f64) / Dd::from(head_dim as f64);
        let mut inverse: Vec<f64> = (0..head_dim / 2).map(|i| (log_theta * power(i)).exp().high).collect();
        let amplitude = scaling.apply(&mut inverse, theta)?;
        Self::of(inverse, amplitude, max_positions)
    }

    /// The table of these frequencies, in radians per position: heads of twice as many values.
    /// A scaling of context acts on them, in f64, before they come here.
    ///
    /// # Errors
    /// No frequencies or more than 128; one that is negative or not finite; positions that are none or
    /// more than 2^20 + 1; an angle above 1,647,099 (2^20 quarter turns).
    pub fn from_inverse_frequencies(inverse: Vec<f64>, max_positions: usize) -> Result<RopeTable> {
        Self::of(inverse, 1.0, max_positions)
    }

    fn of(inverse: Vec<f64>, amplitude: f64, max_positions: usize) -> Result<RopeTable> {
        if inverse.is_empty() || inverse.len() > Self::MAX_HEAD_DIM / 2 {
            return refuse("1..=128 frequencies", inverse.len());
        }
        if max_positions == 0 || max_positions > Self::MAX_POSITIONS {
            return refuse("max_positions in 1..=1048577", max_positions);
        }
        if let Some(bad) = inverse.iter().find(|f| !f.is_finite() || f.is_sign_negative()) {
            return refuse("frequencies that are finite and not negative", bad);
        }
        let last = (max_positions - 1) as f64;
        if let Some(bad) = inverse.iter().map(|f| f * last).find(|&angle| angle > MAX_ANGLE) {
            return refuse("angles of at most 1647099", bad);
        }
        let blocks = (0..max_positions.div_ceil(BLOCK)).map(|_| OnceLock::new()).collect();
        let copies = Mutex::default();
        let shared = Shared { inverse_frequencies: inverse, amplitude, max_positions, blocks, copies };
        Ok(RopeTable { shared: Arc::new(shared) })
    }

    /// (cos, sin) of a position, each `head_dim / 2` long.
    ///
    /// # Panics
    /// If `position` is not below [`max_positions`](Self::max_positions), as slices do: operations
    /// compare their positions with it at the door.
    #[inline]
    pub fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let shared = &*self.shared;
        assert!(position < shared.max_positions, "rope: position {position} >= {}", shared.max_positions);
        let half = shared.inverse_frequencies.len();
        let block = shared.blocks[position / BLOCK].get_or_init(|| shared.block(position / BLOCK));
        block[position % BLOCK * 2 * half..][..2 * half].split_at(half)
    }

    /// Where a GPU finds the rows of these positions: an array of addresses, one for each 256 positions,
    /// of `[256, head_dim]` f32, a position's cosines, then its sines. Blocks of positions that nobody
    /// asked for have no address.
    ///
    /// The array stays where it is for as long as the table lives; each block is brought there once.
    pub(crate) fn on(&self, gpu: &Gpu, positions: impl Iterator<Item = usize>) -> Result<At> {
        let mut copies = self.shared.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let own = match copies.iter().position(|copy| copy.addresses.home().same(gpu)) {
            Some(i) => i,
            None => {
                let addresses = gpu.upload(&vec![0u64; self.shared.blocks.len()])?;
                copies.push(GpuCopy { addresses, blocks: BTreeMap::new() });
                copies.len() - 1
            }
        };
        let copy = &mut copies[own];
        let mut last = usize::MAX;
        for position in positions {
            let block = position / BLOCK;
            if block != last && !copy.blocks.contains_key(&block) {
                self.bring(gpu, copy, block)?;
            }
            last = block;
        }
        Ok(copy.addresses.arg())
    }

    /// Brings the rows of these positions to a GPU before a pass asks for them; nothing on a processor.
    ///
    /// # Errors
    /// When the device has no memory for them.
    pub fn prefetch(&self, device: &Device, positions: impl Iterator<Item = usize>) -> Result<()> {
        match device {
            Device::Gpu(gpu) => self.on(gpu, positions.filter(|&p| p < self.max_positions())).map(|_| ()),
            Device::Cpu(_) => Ok(()),
        }
    }

    fn bring(&self, gpu: &Gpu, copy: &mut GpuCopy, block: usize) -> Result<()> {
        let shared = &*self.shared;
        let rows = gpu.upload(shared.blocks[block].get_or_init(|| shared.block(block)))?;
        let to = copy.addresses.at() + (block * size_of::<u64>()) as u64;
        // SAFETY: an address for each block of the table; kernels that wait asked for other blocks.
        unsafe { gpu.upload_into(to, &[rows.at()])? };
        copy.blocks.insert(block, rows);
        Ok(())
    }

    /// The first position that has no row.
    pub fn max_positions(&self) -> usize {
        self.shared.max_positions
    }

    /// What cosines and sines are multiplied by: 1, or YaRN's factor.
    pub fn amplitude(&self) -> f64 {
        self.shared.amplitude
    }

    /// Values in a head.
    pub fn head_dim(&self) -> usize {
        2 * self.shared.inverse_frequencies.len()
    }

    /// Radians per position, by pair.
    pub fn inverse_frequencies(&self) -> &[f64] {
        &self.shared.inverse_frequencies
    }
}

impl Shared {
    fn block(&self, block: usize) -> Box<[f32]> {
        let half = self.inverse_frequencies.len();
        let first = block * BLOCK;
        let rows = BLOCK.min(self.max_positions - first);
        let mut out = vec![0.0; rows * 2 * half];
        for (position, row) in (first..).zip(out.chunks_exact_mut(2 * half)) {
            let (cos, sin) = row.split_at_mut(half);
            for ((c, s), inverse) in cos.iter_mut().zip(sin).zip(&self.inverse_frequencies) {
                let (sin, cos) = portable::sin_cos(position as f64 * inverse);
                (*c, *s) = ((cos * self.amplitude) as f32, (sin * self.amplitude) as f32);
            }
        }
        out.into()
    }
}

impl fmt::Debug for RopeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = self.shared.blocks.iter().filter(|block| block.get().is_some()).count();
        f.debug_struct("RopeTable")
            .field("inverse_frequencies", &self.shared.inverse_frequencies)
            .field("max_positions", &self.shared.max_positions)
            .field("blocks_made", &made)
            .finish()
    }
}

fn refuse<T>(want: &'static str, got: impl fmt::Display) -> Result<T> {
    Err(Error::Argument { op: "rope", want, got: got.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../tests/data/golden_bits/rope.txt");

    /// A line `rope/theta/hd/i/pos cos sin`.
    fn parse(line: &str) -> Option<(f64, [usize; 3], [u32; 2])> {
        let (address, bits) = line.strip_prefix("rope/")?.split_once(' ')?;
        let (theta, rest) = address.split_once('/')?;
        let places: Vec<usize> = rest.split('/').map_while(|n| n.parse().ok()).collect();
        let bits: Vec<u32> = bits.split(' ').map_while(|n| u32::from_str_radix(n, 16).ok()).collect();
        Some((theta.parse().ok()?, places.try_into().ok()?, bits.try_into().ok()?))
    }

    #[test]
    fn every_golden_entry_is_met_bit_for_bit() {
        let mut table = RopeTable::new(1.0, 2, 1).expect("a table");
        let (mut key, mut compared) = (None, 0);
        for line in GOLDEN.lines() {
            let (theta, [head_dim, i, position], want) = parse(line).expect("a golden line");
            if key != Some((theta, head_dim)) {
                key = Some((theta, head_dim));
                table = RopeTable::new(theta, head_dim, RopeTable::MAX_POSITIONS).expect("a table");
            }
            let (cos, sin) = table.row(position);
            assert_eq!([cos[i].to_bits(), sin[i].to_bits()], want, "{line}");
            compared += 1;
        }
        assert_eq!(compared, 840);
    }

    #[test]
    fn a_row_does_not_depend_on_who_asked_first() {
        let (one, other) = (RopeTable::new(1e6, 64, 1000), RopeTable::new(1e6, 64, 700));
        let (one, other) = (one.expect("a table"), other.expect("a table").clone());
        let backwards: Vec<_> = (0..700).rev().map(|p| other.row(p)).collect();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for (position, row) in backwards.iter().rev().enumerate() {
                        assert_eq!(one.row(position), *row);
                    }
                });
            }
        });
    }

    #[test]
    fn position_0_turns_nothing() {
        let table = RopeTable::new(10_000.0, 24, 5).expect("a table");
        assert_eq!(table.row(0), (&[1.0; 12][..], &[0.0; 12][..]));
        assert_eq!((table.head_dim(), table.max_positions()), (24, 5));
    }

    #[test]
    fn frequencies_that_are_powers_of_two_are_exact() {
        let table = RopeTable::new(65_536.0, 32, 1).expect("a table");
        let want: Vec<f64> = (0..16).map(|i| 0.5f64.powi(i)).collect();
        assert_eq!(table.inverse_frequencies(), want);
    }

    #[test]
    fn what_the_table_cannot_hold_is_refused() {
        let refused = |theta, head_dim, positions| RopeTable::new(theta, head_dim, positions).is_err();
        assert!(refused(1e4, 0, 8) && refused(1e4, 7, 8) && refused(1e4, 258, 8));
        assert!(refused(0.0, 8, 8) && refused(-1.0, 8, 8));
        assert!(refused(f64::NAN, 8, 8) && refused(f64::INFINITY, 8, 8));
        assert!(refused(1e4, 8, 0) && refused(1e4, 8, (1 << 20) + 2));
        assert!(refused(1e-300, 8, 1 << 20));
        let refused = |inverse: &[f64]| RopeTable::from_inverse_frequencies(inverse.to_vec(), 8).is_err();
        assert!(refused(&[]) && refused(&[0.5; 129]) && refused(&[-0.5]) && refused(&[f64::NAN]));
        assert!(!refused(&[0.5, 0.0]));
    }
}
