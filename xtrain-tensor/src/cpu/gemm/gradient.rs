//! The gradient of a weight: `g += dy^T x`, sample by sample.
use std::ops::Range;

use super::panels::Row;
use super::tile::{Beta, Prefetch, TileJob, tile_rows};
use super::{CHUNK, LINE, SERIAL, tile_groups};
use crate::Cpu;
use crate::cpu::lanes::LANES;
use crate::cpu::scratch::Buffer;
use crate::cpu::{Disjoint, Simd};

/// Outputs of a unit of work, at most: serial, where their part of g stays in the second-level cache;
/// with other threads, so that there are enough units.
const BAND: [usize; 2] = [384, 48];

/// Rows of a chunk from which on its columns are copied side by side before they are read: where they lie,
/// one row apart, they compete for a few places of the first-level cache.
const COPY_MIN_ROWS: usize = 129;

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
    let total: usize = samples.iter().map(ExactSizeIterator::len).sum();
    let threads = cpu.pool.threads();
    let serial = threads == 1 || total * out * inputs < SERIAL;
    let bands = if serial { out.div_ceil(BAND[0]) } else { out.div_ceil(BAND[1]).next_multiple_of(threads) };
    let unit = |i: usize| job.unit(i * out / bands..(i + 1) * out / bands);
    if serial { (0..bands).for_each(unit) } else { cpu.pool.run(bands, unit) }
}

struct Gradient<'a> {
    simd: Simd,
    dy: &'a [f32],
    x: &'a [f32],
    samples: &'a [Range<usize>],
    g: Disjoint<'a, f32>,
    shape: [usize; 2],
}

impl Gradient<'_> {
    /// The gradient's rows `band`, chunk by chunk; while one chunk is computed the next one is fetched, or it
    /// would be waited for line by line.
    fn unit(&self, band: Range<usize>) {
        let chunks = |s: &Range<usize>| {
            let end = s.end;
            s.clone().step_by(CHUNK).map(move |from| from..end.min(from + CHUNK))
        };
        let mut panel = Buffer::<Row>::new(CHUNK);
        let mut chunks = self.samples.iter().flat_map(chunks).peekable();
        while let Some(rows) = chunks.next() {
            let next = chunks.peek().map_or(rows.start, |next| next.start);
            let mut prefetched = band.start;
            for i in (0..self.shape[1]).step_by(LANES) {
                let right = self.right(rows.clone(), i, &mut panel);
                let l2 = self.next_columns(next, i);
                for (at, height, count) in tile_groups(band.len(), tile_rows(self.simd)) {
                    let o = band.start + at;
                    let l1 = self.next_outputs(next, prefetched..band.end);
                    prefetched = band.end.min(prefetched + count * LINE);
                    self.tiles(rows.clone(), [o, i, height, count], right, [l1, l2]);
                }
            }
        }
    }

    /// The columns `range` of dy in the chunk from row `next` on, a line a tile.
    fn next_outputs(&self, next: usize, range: Range<usize>) -> Prefetch {
        let out = self.shape[0];
        let from = self.dy.as_ptr().wrapping_add(next * out + range.start);
        Prefetch { from, step: out, tile_step: LINE, tiles: range.len().div_ceil(LINE) }
    }

    /// The two lines of x from column `i` on in that chunk, one a tile.
    fn next_columns(&self, next: usize, i: usize) -> Prefetch {
        let inputs = self.shape[1];
        Prefetch {
            from: self.x.as_ptr().wrapping_add(next * inputs + i),
            step: inputs,
            tile_step: LINE,
            tiles: 2,
        }
    }

    /// The up to 32 columns of x from `i` on, in the rows of a chunk, as address and step: copied to `panel` where
    /// there are many rows.
    fn right(&self, rows: Range<usize>, i: usize, panel: &mut [Row]) -> (*const f32, usize) {
        let inputs = self.shape[1];
        let columns = LANES.min(inputs - i);
        // the last elements that a tile reads
        assert!((rows.end - 1) * inputs + i + columns <= self.x.len(), "x has rows of `in` values");
        if rows.len() < COPY_MIN_ROWS {
            return (self.x[rows.start * inputs + i..].as_ptr(), inputs);
        }
        for (r, to) in rows.zip(panel.iter_mut()) {
            let x = &self.x[r * inputs + i..][..columns];
            // a copy of known length is two moves, not a call
            match <&[f32; LANES]>::try_from(x) {
                Ok(x) => to.0 = *x,
                Err(_) => to.0[..columns].copy_from_slice(x),
            }
        }
        (panel.as_ptr().cast(), LANES)
    }

    /// Adds the chunk `rows` to `count` times `height` rows and up to 32 columns of g from `[o, i]` on.
    fn tiles(
        &self,
        rows: Range<usize>,
        [o, i, height, count]: [usize; 4],
        (b, b_step): (*const f32, usize),
        [l1, l2]: [Prefetch; 2],
    ) {
        let [out, inputs] = self.shape;
        let columns = LANES.min(inputs - i);
        assert!((rows.end - 1) * out + o + height * count <= self.dy.len(), "dy has rows of `out` values");
        // `at` checks the address one past the last element, so that all are inside g
        self.g.at((o + height * count - 1) * inputs + i + columns);
        let a = self.dy[rows.start * out + o..].as_ptr();
        let tiles = TileJob {
            a,
            row_step: 1,
            k_step: out,
            b,
            b_step,
            panel_step: 0,
            depth: rows.len(),
            c: self.g.at(o * inputs + i),
            c_step: inputs,
            columns,
            residual: std::ptr::null(),
            beta: Beta::One,
            count,
            l1,
            l2: Some(l2),
        };
        // SAFETY: dy has the values in each of the rows, g has the tile: checked above; b has `columns`
        // values in each, checked by `right`. These elements of g belong to this unit serial.
        unsafe { tiles.run(self.simd, height) }
    }
}
