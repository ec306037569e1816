//! The gradient of a weight: `g += dy^T x`, sample by sample.
use std::ops::Range;

use super::panels::Row;
use super::split::{CHUNK, LINE, SERIAL, TileGroup, tile_groups};
use super::tile::{Beta, Later, Prefetch, TileJob, tile_rows};
use crate::Cpu;
use crate::cpu::lanes::LANES;
use crate::cpu::scratch::Buffer;
use crate::cpu::{Disjoint, Simd};

/// Maximum outputs per unit of work: on one thread, so that their part of g stays in the L2 cache; on several
/// threads, so that there are enough units.
const MAX_BAND: [usize; 2] = [384, 48];

/// Minimum rows of a chunk for which the columns of x are copied to a contiguous panel before they are read. In
/// place, their elements are one row apart and compete for the same sets of the L1 cache.
const COPY_MIN_ROWS: usize = 129;

/// `g[o][i] = g[o][i] + chunk` for every sample and, inside it, for every chunk of 256 rows counted from the sample's
/// first row, in ascending order. `chunk = fma(dy[r][o], x[r][i], chunk)` over the rows of the chunk from +0.
///
/// g `[out, in]`, dy `[rows, out]`, x `[rows, in]`, row-major; `shape = [out, in]`.
pub(crate) fn weight_gradient(
    cpu: &Cpu,
    dy: &[f32],
    x: &[f32],
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
    let bands =
        if serial { out.div_ceil(MAX_BAND[0]) } else { out.div_ceil(MAX_BAND[1]).next_multiple_of(threads) };
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

/// Rows of up to 32 values, `step` elements apart.
#[derive(Debug, Clone, Copy)]
struct BOperand {
    ptr: *const f32,
    step: usize,
}

impl Gradient<'_> {
    /// Computes the rows `band` of the gradient, chunk by chunk. The next chunk is prefetched during the current one;
    /// otherwise each of its cache lines would be a miss.
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
                let b = self.b_operand(rows.clone(), i, &mut panel);
                let l2 = self.next_columns(next, i);
                for group in tile_groups(band.len(), tile_rows(self.simd)) {
                    let group = TileGroup { row: band.start + group.row, ..group };
                    let l1 = self.next_outputs(next, prefetched..band.end);
                    prefetched = band.end.min(prefetched + group.count * LINE);
                    self.tiles(rows.clone(), group, i, b, l1, l2);
                }
            }
        }
    }

    /// Prefetch of the columns `range` of dy in the chunk that starts at row `next`, one cache line per tile.
    fn next_outputs(&self, next: usize, range: Range<usize>) -> Prefetch {
        let out = self.shape[0];
        let from = self.dy.as_ptr().wrapping_add(next * out + range.start);
        Prefetch { from, step: out, tile_step: LINE, tiles: range.len().div_ceil(LINE) }
    }

    /// Prefetch of the two cache lines of x from column `i` on in that chunk, one per tile.
    fn next_columns(&self, next: usize, i: usize) -> Prefetch {
        let inputs = self.shape[1];
        Prefetch {
            from: self.x.as_ptr().wrapping_add(next * inputs + i),
            step: inputs,
            tile_step: LINE,
            tiles: 2,
        }
    }

    /// Up to 32 columns of x from column `i` on, in the rows of a chunk; copied to `panel` if the rows are many.
    fn b_operand(&self, rows: Range<usize>, i: usize, panel: &mut [Row]) -> BOperand {
        let inputs = self.shape[1];
        let columns = LANES.min(inputs - i);
        // the last elements that a tile reads
        assert!((rows.end - 1) * inputs + i + columns <= self.x.len(), "x has rows of `in` values");
        if rows.len() < COPY_MIN_ROWS {
            return BOperand { ptr: self.x[rows.start * inputs + i..].as_ptr(), step: inputs };
        }
        for (r, to) in rows.zip(panel.iter_mut()) {
            let x = &self.x[r * inputs + i..][..columns];
            // a copy of constant length is two moves, not a call
            match <&[f32; LANES]>::try_from(x) {
                Ok(x) => to.0 = *x,
                Err(_) => to.0[..columns].copy_from_slice(x),
            }
        }
        BOperand { ptr: panel.as_ptr().cast(), step: LANES }
    }

    /// Adds the chunk `rows` to a group of tiles of g, up to 32 columns wide, from column `i` on.
    fn tiles(&self, rows: Range<usize>, group: TileGroup, i: usize, b: BOperand, l1: Prefetch, l2: Prefetch) {
        let TileGroup { row: o, height, count } = group;
        let [out, inputs] = self.shape;
        let columns = LANES.min(inputs - i);
        assert!((rows.end - 1) * out + o + height * count <= self.dy.len(), "dy has rows of `out` values");
        // `at` checks the address one past the last element, so all elements are inside g
        self.g.at((o + height * count - 1) * inputs + i + columns);
        let a = self.dy[rows.start * out + o..].as_ptr();
        let tiles = TileJob {
            a,
            row_step: 1,
            k_step: out,
            b: b.ptr,
            b_step: b.step,
            panel_step: 0,
            depth: rows.len(),
            c: self.g.at(o * inputs + i),
            c_step: inputs,
            columns,
            residual: std::ptr::null(),
            beta: Beta::One,
            count,
            l1,
            l2: Later::Next(l2),
        };
        // SAFETY: dy has the values of each row and g has the tile, checked above. b has `columns` values in each
        // row, checked by `b_operand`. These elements of g belong to this unit alone.
        unsafe { tiles.run(self.simd, height) }
    }
}
