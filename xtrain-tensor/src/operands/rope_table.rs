//! The table of cosines and sines for rotary position embedding. Every backend uses it.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use crate::dd::Dd;
use crate::device::Device;
use crate::device::gpu::{self, At, Gpu};
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::portable::{self, MAX_ANGLE};
use crate::rope_scaling::RopeScaling;

/// Positions per block. A block is computed as a whole.
const BLOCK: usize = 256;

/// cos and sin of f64(pos) * `inv[i]`, each rounded to the nearest f32. `inv[i]` is the f64 nearest to theta^(-2i /
/// head_dim).
///
/// `inv` is computed in double-double, the angle is one f64 product, and sine and cosine are implemented in this
/// crate, so no bit depends on the platform's libm. Rows are computed on first use, in blocks of 256 positions.
/// Reading takes no lock. Clones share the table.
#[derive(Clone)]
pub struct RopeTable {
    shared: Arc<Shared>,
}

/// The RoPE angles of `N` rows.
#[derive(Debug, Clone, Copy)]
pub struct RopeArgs<'a> {
    /// Cosines and sines by position.
    pub table: &'a RopeTable,
    /// The absolute position of each row, `[N]`, below [`RopeTable::max_positions`].
    pub positions: &'a [u32],
}

struct Shared {
    inverse_frequencies: Vec<f64>,
    /// Multiplier of cosines and sines.
    amplitude: f64,
    max_positions: usize,
    /// For each position its cosines, then its sines.
    blocks: Vec<OnceLock<Box<[f32]>>>,
    copies: Mutex<Vec<GpuCopy>>,
}

/// The part of a table that is on one GPU.
struct GpuCopy {
    addresses: gpu::Buffer,
    blocks: BTreeMap<usize, gpu::Buffer>,
}

impl RopeTable {
    /// The largest number of positions, 0 ..= 2^20.
    pub const MAX_POSITIONS: usize = (1 << 20) + 1;
    /// The largest head size.
    pub const MAX_HEAD_DIM: usize = 256;

    /// Creates the table for heads of `head_dim` values and positions below `max_positions`.
    ///
    /// # Errors
    /// [`Error::Argument`] if `head_dim` is odd, 0 or above 256; if theta is not a positive normal number; if
    /// `max_positions` is 0 or above 2^20 + 1; or if theta is so far below 1 that an angle exceeds 1,647,099.
    pub fn new(theta: f64, head_dim: usize, max_positions: usize) -> Result<RopeTable> {
        Self::scaled(theta, &RopeScaling::Default, head_dim, max_positions)
    }

    /// Like [`RopeTable::new`], with scaled frequencies. Cosines and sines are multiplied by YaRN's factor: one f64
    /// product, then rounded to the nearest f32.
    ///
    /// # Errors
    /// Those of [`RopeTable::new`] and of [`RopeScaling::check`].
    pub fn scaled(
        theta: f64,
        scaling: &RopeScaling,
        head_dim: usize,
        max_positions: usize,
    ) -> Result<RopeTable> {
        if head_dim == 0 || head_dim % 2 == 1 || head_dim > Self::MAX_HEAD_DIM {
            return refuse("an even head_dim in 2..=256", head_dim);
        }
        if !theta.is_normal() || theta < 0.0 {
            return refuse("a finite theta above 0", theta);
        }
        let log_theta = Dd::log(theta);
        let power = |i: usize| Dd::from(-2.0 * i as f64) / Dd::from(head_dim as f64);
        let mut inverse: Vec<f64> = (0..head_dim / 2).map(|i| (log_theta * power(i)).exp().high).collect();
        let amplitude = scaling.apply(&mut inverse, theta)?;
        Self::of(inverse, amplitude, max_positions)
    }

    /// Creates the table from scaled frequencies in radians per position, one for each of `head_dim / 2` pairs.
    fn of(inverse: Vec<f64>, amplitude: f64, max_positions: usize) -> Result<RopeTable> {
        if inverse.is_empty() || inverse.len() > Self::MAX_HEAD_DIM / 2 {
            return refuse("1..=128 frequencies", inverse.len());
        }
        if max_positions == 0 || max_positions > Self::MAX_POSITIONS {
            return refuse("max_positions in 1..=1048577", max_positions);
        }
        if let Some(bad) = inverse.iter().find(|f| !f.is_finite() || f.is_sign_negative()) {
            return refuse("finite, non-negative frequencies", bad);
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

    /// Returns (cos, sin) of a position, each of length `head_dim / 2`.
    ///
    /// # Panics
    /// If `position` is not below [`max_positions`](Self::max_positions). Operations check their positions before
    /// they call this.
    #[inline]
    pub fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let shared = &*self.shared;
        assert!(position < shared.max_positions, "rope: position {position} >= {}", shared.max_positions);
        let half = shared.inverse_frequencies.len();
        shared.block(position / BLOCK)[position % BLOCK * 2 * half..][..2 * half].split_at(half)
    }

    /// Uploads the rows of these positions if necessary. Returns the device address of an array with one address for
    /// each 256 positions; it points to `[256, head_dim]` f32, for each position its cosines, then its sines. Blocks
    /// that were never requested have no address.
    ///
    /// The array keeps its address as long as the table exists. Each block is uploaded once.
    pub(crate) fn device_addresses(&self, gpu: &Gpu, positions: impl Iterator<Item = usize>) -> Result<At> {
        let shared = &*self.shared;
        let mut copies = lock(&shared.copies);
        if !copies.iter().any(|copy| copy.addresses.home().same(gpu)) {
            let addresses = gpu.upload(&vec![0u64; shared.blocks.len()])?;
            copies.push(GpuCopy { addresses, blocks: BTreeMap::new() });
        }
        let copy = copies.iter_mut().find(|copy| copy.addresses.home().same(gpu));
        let copy = copy.expect("it was added above");
        let mut last = usize::MAX;
        for position in positions {
            let block = position / BLOCK;
            if block != last && !copy.blocks.contains_key(&block) {
                let rows = gpu.upload(shared.block(block))?;
                let to = copy.addresses.at() + (block * size_of::<u64>()) as u64;
                // SAFETY: the array has an address for each block of the table; queued kernels read other blocks only.
                unsafe { gpu.upload_into(to, &[rows.at()])? };
                copy.blocks.insert(block, rows);
            }
            last = block;
        }
        Ok(copy.addresses.arg())
    }

    /// Uploads the rows of these positions before a forward pass reads them. Does nothing on the CPU.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn prefetch(&self, device: &Device, positions: impl Iterator<Item = usize>) -> Result<()> {
        let Device::Gpu(gpu) = device else { return Ok(()) };
        self.device_addresses(gpu, positions.filter(|&p| p < self.max_positions())).map(|_| ())
    }

    /// Number of positions in the table.
    pub fn max_positions(&self) -> usize {
        self.shared.max_positions
    }

    /// Size of a head.
    pub fn head_dim(&self) -> usize {
        2 * self.shared.inverse_frequencies.len()
    }

    /// Radians per position, one for each pair.
    pub fn inverse_frequencies(&self) -> &[f64] {
        &self.shared.inverse_frequencies
    }
}

impl Shared {
    /// The rows of a block, computed on first use.
    #[inline]
    fn block(&self, block: usize) -> &[f32] {
        self.blocks[block].get_or_init(|| self.compute_block(block))
    }

    fn compute_block(&self, block: usize) -> Box<[f32]> {
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
        let computed = self.shared.blocks.iter().filter(|block| block.get().is_some()).count();
        f.debug_struct("RopeTable")
            .field("inverse_frequencies", &self.shared.inverse_frequencies)
            .field("max_positions", &self.shared.max_positions)
            .field("blocks_computed", &computed)
            .finish()
    }
}

fn refuse<T>(want: &'static str, got: impl fmt::Display) -> Result<T> {
    Err(Error::Argument { op: "rope", want, got: got.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../../tests/data/golden_bits/rope.txt");

    /// Parses a line `rope/theta/hd/i/pos cos sin`.
    fn parse(line: &str) -> Option<(f64, [usize; 3], [u32; 2])> {
        let (address, bits) = line.strip_prefix("rope/")?.split_once(' ')?;
        let (theta, rest) = address.split_once('/')?;
        let places: Vec<usize> = rest.split('/').map_while(|n| n.parse().ok()).collect();
        let bits: Vec<u32> = bits.split(' ').map_while(|n| u32::from_str_radix(n, 16).ok()).collect();
        Some((theta.parse().ok()?, places.try_into().ok()?, bits.try_into().ok()?))
    }

    #[test]
    fn every_golden_entry_is_reproduced_bit_for_bit() {
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
    fn a_row_does_not_depend_on_the_order_of_access() {
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
    fn position_0_has_no_rotation() {
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
    fn invalid_arguments_are_refused() {
        let refused = |theta, head_dim, positions| RopeTable::new(theta, head_dim, positions).is_err();
        assert!(refused(1e4, 0, 8) && refused(1e4, 7, 8) && refused(1e4, 258, 8));
        assert!(refused(0.0, 8, 8) && refused(-1.0, 8, 8));
        assert!(refused(f64::NAN, 8, 8) && refused(f64::INFINITY, 8, 8));
        assert!(refused(1e4, 8, 0) && refused(1e4, 8, (1 << 20) + 2));
        assert!(refused(1e-300, 8, 1 << 20));
        let refused = |inverse: &[f64]| RopeTable::of(inverse.to_vec(), 1.0, 8).is_err();
        assert!(refused(&[]) && refused(&[0.5; 129]) && refused(&[-0.5]) && refused(&[f64::NAN]));
        assert!(!refused(&[0.5, 0.0]));
    }
}
