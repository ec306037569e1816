//! `y = x B` and `y += x B` over packed panels.
use std::ops::Range;

use super::panels::View;
use super::tile::{MOST_ROWS, Start, Tile, tile_rows};
use super::{CHUNK, split, tiles};
use crate::Cpu;
use crate::cpu::lanes::LANES;
use crate::cpu::{Disjoint, Simd};

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
/// Order: [`super`]'s; with [`Start::Continue`] the chunks go on into y (a group of linears that read
/// one x: the second weight's product continues the first's).
pub(crate) fn product(cpu: &Cpu, a: Matrix<'_>, b: View<'_>, y: &mut [f32], start: Start) {
    a.check(b.depth);
    assert_eq!(y.len(), a.rows * b.columns, "y holds rows * columns values");
    if b.depth == 0 && start == Start::Zero {
        y.fill(0.0);
    }
    let job = Product { simd: cpu.simd, a, b, y: Disjoint::new(y), start };
    split(cpu, [a.rows, b.depth, b.columns], |rows, panels| job.unit(rows, panels));
}

struct Product<'a> {
    simd: Simd,
    a: Matrix<'a>,
    b: View<'a>,
    y: Disjoint<'a, f32>,
    start: Start,
}

impl Product<'_> {
    /// The outputs of `rows` in `panels`. Each output belongs to one unit.
    fn unit(&self, rows: Range<usize>, panels: Range<usize>) {
        let most = tile_rows(self.simd);
        let whole = panels.end.min(self.b.columns / LANES).max(panels.start);
        for k in (0..self.b.depth).step_by(CHUNK) {
            // one tile of rows walks all panels; several tiles share a panel while it is near
            let stride = if rows.len() <= most { (whole - panels.start).max(1) } else { 1 };
            for panel in (panels.start..whole).step_by(stride) {
                for (row, height) in tiles(rows.len(), most) {
                    self.tile(rows.start + row, height, k, panel..panel + stride);
                }
            }
            if whole < panels.end {
                for (row, height) in tiles(rows.len(), most) {
                    self.ragged(rows.start + row, height, k, whole);
                }
            }
        }
    }

    /// A tile over whole panels.
    fn tile(&self, row: usize, height: usize, k: usize, panels: Range<usize>) {
        let step = self.b.columns;
        for i in 0..height {
            let from = (row + i) * step + panels.start * LANES;
            assert!(from + panels.len() * LANES <= self.a.rows * step, "whole panels lie inside y");
        }
        let c = self.y.at(row * step + panels.start * LANES);
        let tile = Tile { panels: panels.len(), c, c_step: step, ..self.operands(row, k, panels.start) };
        // SAFETY: a was checked on entry, b by `operands` for its first panel and by `View` for the
        // last; the rows of c lie inside y, checked above, and belong to this unit alone.
        unsafe { tile.run(self.simd, height) }
    }

    /// A tile over the last panel, of which fewer than 32 columns exist.
    fn ragged(&self, row: usize, height: usize, k: usize, panel: usize) {
        let width = self.b.columns - panel * LANES;
        let mut c = [[0.0; LANES]; MOST_ROWS];
        // SAFETY: these elements of y belong to this unit alone.
        let y = |i: usize| unsafe {
            let from = (row + i) * self.b.columns + panel * LANES;
            self.y.slice(from..from + width)
        };
        for (i, c) in c.iter_mut().enumerate().take(height) {
            c[..width].copy_from_slice(y(i));
        }
        let to = c.as_mut_ptr().cast();
        let tile = Tile { panels: 1, c: to, c_step: LANES, ..self.operands(row, k, panel) };
        // SAFETY: a was checked on entry, b by `operands`; c is local and holds MOST_ROWS rows.
        unsafe { tile.run(self.simd, height) }
        for (i, c) in c.iter().enumerate().take(height) {
            y(i).copy_from_slice(&c[..width]);
        }
    }

    fn operands(&self, row: usize, k: usize, panel: usize) -> Tile {
        let Matrix { data, row_step, k_step, .. } = self.a;
        let depth = CHUNK.min(self.b.depth - k);
        Tile {
            a: data[row * row_step + k * k_step..].as_ptr(),
            row_step,
            k_step,
            b: self.b.row(panel, k, depth),
            b_step: LANES,
            panel_step: self.b.step * LANES,
            panels: 0,
            depth,
            c: std::ptr::null_mut(),
            c_step: 0,
            start: if k == 0 { self.start } else { Start::Continue },
        }
    }
}
