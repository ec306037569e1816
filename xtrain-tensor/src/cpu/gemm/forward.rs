//! `y = x B` and `y += x B` over packed panels.
use std::ops::Range;

use super::panels::View;
use super::tile::{Beta, Prefetch, TileJob, tile_rows};
use super::{CHUNK, split, tile_groups};
use crate::Cpu;
use crate::cpu::lanes::LANES;
use crate::cpu::{Disjoint, Simd};

/// Elements of a line of cache: half a row of a panel.
const LINE: usize = LANES / 2;

/// TileJob that ask for the next panel, each for its share: of two lines for a step over the depth one each.
const PREFETCH_TILES: usize = 2;

/// A matrix in memory: element (r, k) at `data[r * row_step + k * k_step]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    /// The elements.
    pub(crate) data: &'a [f32],
    /// Rows.
    pub(crate) rows: usize,
    /// From one row to the next.
    pub(crate) row_step: usize,
    /// From one element of a row to the next.
    pub(crate) k_step: usize,
}

impl<'a> Matrix<'a> {
    /// Row-major and contiguous.
    pub(crate) fn new(data: &'a [f32], rows: usize, depth: usize) -> Matrix<'a> {
        Matrix { data, rows, row_step: depth, k_step: 1 }
    }

    /// Panics unless all of `rows` x `depth` lies inside the data.
    fn check(&self, depth: usize) {
        if self.rows > 0 && depth > 0 {
            let last = (self.rows - 1) * self.row_step + (depth - 1) * self.k_step;
            assert!(last < self.data.len(), "{} rows of {depth} leave the data", self.rows);
        }
    }
}

/// `y = start + a b`: y `[a.rows, b.columns]` row-major; a `[rows, b.depth]`.
///
/// Order: [`super`]'s; with [`Beta::One`] the chunks go on into y (a group of linears that read
/// one x: the second weight's product continues the first's).
pub(crate) fn product(cpu: &Cpu, a: Matrix<'_>, b: View<'_>, y: &mut [f32], beta: Beta) {
    if b.depth == 0 && beta == Beta::Zero {
        y.fill(0.0);
    }
    run(Product { simd: cpu.simd, a, b, y: Disjoint::new(y), beta, residual: None }, cpu);
}

/// `y = h + a b`, the product summed first, then added: a projection back into the residual stream.
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
    split(cpu, [a.rows, b.depth, b.columns], |rows, panels| job.unit(rows, panels));
}

struct Product<'a> {
    simd: Simd,
    a: Matrix<'a>,
    b: View<'a>,
    y: Disjoint<'a, f32>,
    beta: Beta,
    /// What is added to the finished sum, of the shape of y.
    residual: Option<&'a [f32]>,
}

impl Product<'_> {
    /// The outputs of `rows` in `panels`. Each output belongs to one unit.
    fn unit(&self, rows: Range<usize>, panels: Range<usize>) {
        let most = tile_rows(self.simd);
        // one tile of rows walks all panels; several tiles share a panel while it is l1
        let stride = if rows.len() <= most { panels.len().max(1) } else { 1 };
        for k in (0..self.b.depth).step_by(CHUNK) {
            for panel in panels.clone().step_by(stride) {
                let mut done = (stride == 1).then_some(0);
                for (row, height, count) in tile_groups(rows.len(), most) {
                    self.tiles([rows.start + row, height, count, k], panel..panel + stride, done);
                    done = done.map(|done| done + count);
                }
            }
        }
    }

    /// What is left of the next panel when so many tiles have asked for their share of it.
    fn next_panel(&self, k: usize, panel: usize, done: usize) -> Prefetch {
        let share = CHUNK.min(self.b.depth - k) * LINE;
        let from = self.b.row(0, 0, 0).wrapping_add((panel * self.b.step + k) * LANES);
        let tiles = PREFETCH_TILES.saturating_sub(done);
        Prefetch { from: from.wrapping_add(done * share), step: LINE, tile_step: share, tiles }
    }

    /// One chunk of `count` tiles of `height` rows from `row` on, in `panels`. Those that share a panel ask for the
    /// next one: `done` of them are computed.
    fn tiles(&self, [row, height, count, k]: [usize; 4], panels: Range<usize>, done: Option<usize>) {
        let Matrix { data, row_step, k_step, .. } = self.a;
        let step = self.b.columns;
        let columns = panels.start * LANES..step.min(panels.end * LANES);
        let depth = CHUNK.min(self.b.depth - k);
        let first = row * step + columns.start;
        // `at` checks the address one past the last element, so that all are inside y
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
            l2: done.map(|done| self.next_panel(k, panels.end, done)),
        };
        // SAFETY: a was checked on entry, b by `row` for the first panel and by `View` for the last;
        // the rows of c lie inside y, checked above, as do those of `residual`, which is as long; those of
        // c belong to this unit alone.
        unsafe { tiles.run(self.simd, height) }
    }
}
