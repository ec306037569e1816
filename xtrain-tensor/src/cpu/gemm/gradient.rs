//! The gradient of a weight: `g += dy^T x`, sample by sample.
use std::ops::Range;

use super::CHUNK;
use super::tile::{MOST_ROWS, Start, Tile, tile_rows};
use super::tiles;
use crate::Cpu;
use crate::cpu::lanes::LANES;
use crate::cpu::scratch::Buffer;
use crate::cpu::{Disjoint, Simd};

/// The most outputs of a unit of work: their chunk of dy stays in the second-level cache.
const BAND: usize = 192;

/// `g[o][i] = g[o][i] + chunk` for every sample, and inside it for every chunk of 256 rows counted from
/// the sample's first row, rising; `chunk = fma(dy[r][o], x[r][i], chunk)` over its rows from +0.
///
/// g `[out, in]`, dy `[rows, out]`, x `[rows, in]`, row-major; `shape = [out, in]`.
pub(crate) fn weight_gradient(
    cpu: &Cpu,
    [dy, x]: [&[f32]; 2],
    samples: &[Range<usize>],
    g: &mut [f32],
    shape: [usize; 2],
) {
    let [out, inputs] = shape;
    assert_eq!(g.len(), out * inputs, "g holds out * in values");
    let rows = samples.iter().map(|s| s.end).max().unwrap_or(0);
    assert!(dy.len() >= rows * out && x.len() >= rows * inputs, "the samples' rows exist");
    let job = Gradient { simd: cpu.simd, dy, x, samples, g: Disjoint::new(g), shape };
    let threads = cpu.pool.threads();
    let bands = out.div_ceil((out / (3 * threads)).clamp(BAND / 4, BAND));
    let total: usize = samples.iter().map(ExactSizeIterator::len).sum();
    if threads == 1 || total * out * inputs < 1 << 18 {
        (0..bands).for_each(|i| job.unit(i * out / bands..(i + 1) * out / bands));
    } else {
        cpu.pool.run(bands, |i| job.unit(i * out / bands..(i + 1) * out / bands));
    }
}

struct Gradient<'a> {
    simd: Simd,
    dy: &'a [f32],
    x: &'a [f32],
    samples: &'a [Range<usize>],
    g: Disjoint<'a, f32>,
    shape: [usize; 2],
}

/// A chunk of some columns of dy: row r at `data[r * step..]`.
struct Left<'a> {
    data: &'a [f32],
    step: usize,
}

/// 32 columns of a chunk of x.
#[repr(C, align(64))]
struct Panel([[f32; LANES]; CHUNK]);

impl Gradient<'_> {
    /// The gradient's rows `band`.
    fn unit(&self, band: Range<usize>) {
        let [out, inputs] = self.shape;
        let heights = tiles(band.len(), tile_rows(self.simd));
        let mut panel = Panel([[0.0; LANES]; CHUNK]);
        let mut left = Buffer::<f32>::of(band.len() * CHUNK);
        for sample in self.samples {
            for from in sample.clone().step_by(CHUNK) {
                let depth = CHUNK.min(sample.end - from);
                let dy = &self.dy[from * out..(from + depth) * out];
                for (to, row) in left.chunks_exact_mut(band.len()).zip(dy.chunks_exact(out)) {
                    to.copy_from_slice(&row[band.clone()]);
                }
                for i in (0..inputs).step_by(LANES) {
                    let width = LANES.min(inputs - i);
                    for (row, to) in panel.0.iter_mut().enumerate().take(depth) {
                        let x = &self.x[(from + row) * inputs + i..][..width];
                        // a copy of known length is two moves, not a call
                        match <&[f32; LANES]>::try_from(x) {
                            Ok(x) => *to = *x,
                            Err(_) => to[..width].copy_from_slice(x),
                        }
                    }
                    for (at, height) in heights.clone() {
                        let a = Left { data: &left[at..], step: band.len() };
                        self.tile(a, panel.0[..depth].as_flattened(), [band.start + at, i], height);
                    }
                }
            }
        }
    }

    /// Adds one chunk to `height` rows and up to 32 columns of g from `[o, i]` on; b `[depth, 32]`.
    fn tile(&self, a: Left<'_>, b: &[f32], [o, i]: [usize; 2], height: usize) {
        let inputs = self.shape[1];
        let depth = b.len() / LANES;
        assert!((depth - 1) * a.step + height <= a.data.len(), "a holds depth rows of height values");
        let first = o * inputs + i;
        let tile = Tile {
            a: a.data.as_ptr(),
            row_step: 1,
            k_step: a.step,
            b: b.as_ptr(),
            b_step: LANES,
            panel_step: 0,
            panels: 1,
            depth,
            c: self.g.at(first),
            c_step: inputs,
            start: Start::Continue,
        };
        if i + LANES <= inputs {
            // `at` checks the address one past the last element, so that all are inside g
            self.g.at(first + (height - 1) * inputs + LANES);
            // SAFETY: a holds depth rows of height values, b depth rows of 32, g the tile: checked
            // above. These elements of g belong to this unit alone.
            return unsafe { tile.run(self.simd, height) };
        }
        let width = inputs - i;
        let mut c = [[0.0; LANES]; MOST_ROWS];
        // SAFETY: these elements of g belong to this unit alone.
        let g = |row: usize| unsafe { self.g.slice(first + row * inputs..first + row * inputs + width) };
        for (row, c) in c.iter_mut().enumerate().take(height) {
            c[..width].copy_from_slice(g(row));
        }
        let tile = Tile { c: c.as_mut_ptr().cast(), c_step: LANES, ..tile };
        // SAFETY: as above for a and b; c holds MOST_ROWS rows of 32.
        unsafe { tile.run(self.simd, height) }
        for (row, c) in c.iter().enumerate().take(height) {
            g(row).copy_from_slice(&c[..width]);
        }
    }
}
