//! `y = x B` and `y += x B` with packed B.
use std::ops::Range;

use super::panels::View;
use super::split::{CHUNK, LINE, TileGroup, split, tile_groups};
use super::tile::{Beta, Later, Prefetch, TileJob, tile_rows};
use crate::Cpu;
use crate::cpu::lanes::LANES;
use crate::cpu::{Disjoint, Simd};

/// Number of tiles that prefetch the next panel: one for each of the two cache lines of a panel row.
const PREFETCH_TILES: usize = 2;

/// A strided matrix: element (r, k) is `data[r * row_step + k * k_step]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) row_step: usize,
    pub(crate) k_step: usize,
}

impl<'a> Matrix<'a> {
    /// A row-major, contiguous matrix.
    pub(crate) fn new(data: &'a [f32], rows: usize, depth: usize) -> Matrix<'a> {
        Matrix { data, rows, row_step: depth, k_step: 1 }
    }

    /// Panics unless all of `rows` x `depth` is inside the data.
    fn check(&self, depth: usize) {
        if self.rows > 0 && depth > 0 {
            let last = (self.rows - 1) * self.row_step + (depth - 1) * self.k_step;
            assert!(
                last < self.data.len(),
                "{} rows of {depth} elements are out of bounds of the data",
                self.rows
            );
        }
    }
}

/// `y = beta y + a b`: y `[a.rows, b.columns]` row-major, a `[rows, b.depth]`.
///
/// Order: that of [`super`]. With [`Beta::One`] the chunks are added to the values in y. For a group of linears that
/// read one x, the product of the second weight continues that of the first.
pub(crate) fn product(cpu: &Cpu, a: Matrix<'_>, b: View<'_>, y: &mut [f32], beta: Beta) {
    if b.depth == 0 && beta == Beta::Zero {
        y.fill(0.0);
    }
    run(Product { simd: cpu.simd, a, b, y: Disjoint::new(y), beta, residual: None }, cpu);
}

/// `y = h + a b` with the residual h added in the epilogue, after the product is summed.
pub(crate) fn product_residual(cpu: &Cpu, h: &[f32], a: Matrix<'_>, b: View<'_>, y: &mut [f32]) {
    assert_eq!(h.len(), y.len(), "h has the product's shape");
    if b.depth == 0 {
        y.iter_mut().zip(h).for_each(|(y, h)| *y = h + 0.0);
    }
    run(Product { simd: cpu.simd, a, b, y: Disjoint::new(y), beta: Beta::Zero, residual: Some(h) }, cpu);
}

fn run(job: Product<'_>, cpu: &Cpu) {
    let (a, b) = (job.a, job.b);
    a.check(b.depth);
    assert_eq!(job.y.len(), a.rows * b.columns, "y holds rows * columns values");
    split(cpu, [a.rows, b.depth, b.columns], 1, |rows, panels| job.unit(rows, panels));
}

struct Product<'a> {
    simd: Simd,
    a: Matrix<'a>,
    b: View<'a>,
    y: Disjoint<'a, f32>,
    beta: Beta,
    /// Added to the finished sum. Same shape as y.
    residual: Option<&'a [f32]>,
}

impl Product<'_> {
    /// Computes the outputs of `rows` in `panels`. Each output belongs to one unit.
    fn unit(&self, rows: Range<usize>, panels: Range<usize>) {
        let max = tile_rows(self.simd);
        // a single row of tiles walks all panels; otherwise all tiles read one panel while it is in the L1 cache
        let stride = if rows.len() <= max { panels.len().max(1) } else { 1 };
        for k in (0..self.b.depth).step_by(CHUNK) {
            for panel in panels.clone().step_by(stride) {
                let mut done = (stride == 1).then_some(0);
                for group in tile_groups(rows.len(), max) {
                    let count = group.count;
                    let group = TileGroup { row: rows.start + group.row, ..group };
                    self.tiles(group, k, panel..panel + stride, done);
                    done = done.map(|done| done + count);
                }
            }
        }
    }

    /// The prefetch of the next panel that remains after `done` tiles have fetched their share.
    fn next_panel(&self, k: usize, panel: usize, done: usize) -> Prefetch {
        let share = CHUNK.min(self.b.depth - k) * LINE;
        let from = self.b.row(0, 0, 0).wrapping_add((panel * self.b.step + k) * LANES);
        let tiles = PREFETCH_TILES.saturating_sub(done);
        Prefetch { from: from.wrapping_add(done * share), step: LINE, tile_step: share, tiles }
    }

    /// Computes one chunk of a group of tiles in `panels`. Tiles that share a panel prefetch the next one; `done` is
    /// the number of tiles before this group. `None`: a single tile, which walks them.
    fn tiles(&self, group: TileGroup, k: usize, panels: Range<usize>, done: Option<usize>) {
        let TileGroup { row, height, count } = group;
        let Matrix { data, row_step, k_step, .. } = self.a;
        let step = self.b.columns;
        let columns = panels.start * LANES..step.min(panels.end * LANES);
        let depth = CHUNK.min(self.b.depth - k);
        let first = row * step + columns.start;
        // `at` checks the address one past the last element, so all elements are inside y
        self.y.at((row + height * count - 1) * step + columns.end);
        let last = k + depth == self.b.depth;
        let a = data[row * row_step + k * k_step..].as_ptr();
        let below = height * row_step;
        let l1 =
            Prefetch { from: a.wrapping_add(below), step: height * k_step, tile_step: below, tiles: count };
        let tiles = TileJob {
            a,
            row_step,
            k_step,
            b: self.b.row(panels.start, k, depth),
            b_step: LANES,
            panel_step: self.b.step * LANES,
            depth,
            c: self.y.at(first),
            c_step: step,
            columns: columns.len(),
            residual: self.residual.filter(|_| last).map_or(std::ptr::null(), |h| h[first..].as_ptr()),
            beta: if k == 0 { self.beta } else { Beta::One },
            count,
            l1,
            l2: done.map_or(Later::Walk, |done| Later::Next(self.next_panel(k, panels.end, done))),
        };
        // SAFETY: a was checked on entry, b by `row` for the first panel and by `View` for the last. The rows of c
        // are inside y, checked above; so are those of `residual`, which has the same length. The elements of c
        // belong to this unit alone.
        unsafe { tiles.run(self.simd, height) }
    }
}
