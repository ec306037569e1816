//! Weights as the f32 products read them: panels of 32 columns, packed once per update.

use std::ops::Range;

use super::super::Cpu;
use super::super::lanes::{Kernel, LANES, Lanes, Reg, dispatch};
use super::super::scratch::{Buffer, scratch};

/// The elements of one row (one k) of a panel, on cache lines of their own.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Row(pub(super) [f32; LANES]);
scratch!(Row, Row([0.0; LANES]));

/// A matrix B `[depth, columns]` as panels `[ceil(columns / 32)][depth][32]`, padded with +0.
#[derive(Debug, Clone)]
pub(crate) struct Panels {
    rows: Buffer<Row>,
    depth: usize,
    columns: usize,
}

impl Panels {
    /// Packs a weight `[out, in]` for `x W^T`: depth `in`, columns `out`.
    pub(crate) fn of_weight(cpu: &Cpu, w: &[f32], shape: [usize; 2]) -> Panels {
        let [out, depth] = shape;
        assert_eq!(w.len(), out * depth, "a weight holds out * in values");
        let mut panels = Panels::blank([depth, out]);
        panels.write(cpu, 0, w);
        panels
    }

    /// Panels, none of which is written yet.
    pub(crate) fn blank([depth, columns]: [usize; 2]) -> Panels {
        Panels { rows: Buffer::with_capacity(columns.div_ceil(LANES) * depth), depth, columns }
    }

    /// Packs the rows of a weight `[out, in]` from `first` on, a multiple of 32: a multiple of 32 of them, or
    /// all that are left.
    pub(crate) fn write(&mut self, cpu: &Cpu, first: usize, w: &[f32]) {
        let depth = self.depth;
        self.pack(cpu, first..first + w.len() / depth.max(1), |panel, rows| {
            let w = &w[(panel.start - first) * depth..(panel.end - first) * depth];
            dispatch(cpu.simd, Transpose { w, depth, rows });
        });
    }

    /// The column `j`: of a weight for `x W^T`, its row.
    pub(crate) fn column(&self, j: usize, to: &mut [f32]) {
        let rows = &self.rows[j / LANES * self.depth..];
        to.iter_mut().zip(rows).for_each(|(to, row)| *to = row.0[j % LANES]);
    }

    /// Packs a weight `[out, in]` for `dy W`: depth `out`, columns `in`.
    pub(crate) fn of_weight_transposed(cpu: &Cpu, w: &[f32], shape: [usize; 2]) -> Panels {
        let [depth, columns] = shape;
        assert_eq!(w.len(), depth * columns, "a weight holds out * in values");
        let mut panels = Panels::blank([depth, columns]);
        panels.pack(cpu, 0..columns, |panel, rows| {
            for (row, w) in rows.iter_mut().zip(w.chunks_exact(columns)) {
                // a copy of known length is two moves, not a call
                match <&[f32; LANES]>::try_from(&w[panel.clone()]) {
                    Ok(w) => row.0 = *w,
                    Err(_) => row.0[..panel.len()].copy_from_slice(&w[panel.clone()]),
                }
            }
        });
        panels
    }

    /// `fill(columns, rows)` writes a panel of the columns `range`; one that is not whole is zero before.
    fn pack(&mut self, cpu: &Cpu, range: Range<usize>, fill: impl Fn(Range<usize>, &mut [Row]) + Sync) {
        let (first, columns) = (first_panel(&range, self.columns), self.columns);
        self.rows.grow(range.end.div_ceil(LANES) * self.depth);
        let rows = &mut self.rows[first * self.depth..range.end.div_ceil(LANES) * self.depth];
        cpu.pool.parts(rows, self.depth, |p, rows: &mut [Row]| {
            let panel = (first + p) * LANES..columns.min((first + p + 1) * LANES);
            if panel.len() < LANES {
                rows.fill(Row([0.0; LANES]));
            }
            fill(panel, rows);
        });
    }

    /// `[depth, columns]`.
    #[cfg(test)]
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.depth, self.columns]
    }

    /// The element at depth `k` of column `j`.
    #[cfg(test)]
    pub(crate) fn at(&self, k: usize, j: usize) -> f32 {
        self.rows[j / LANES * self.depth + k].0[j % LANES]
    }

    /// Bytes held, padding included.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.rows[..])
    }

    /// The whole matrix.
    pub(crate) fn view(&self) -> View<'_> {
        View { rows: &self.rows, step: self.depth, depth: self.depth, columns: self.columns }
    }
}

/// The first of the panels that the columns `range` of so many are.
pub(crate) fn first_panel(range: &Range<usize>, columns: usize) -> usize {
    let ends = range.end == columns || range.end < columns && range.end.is_multiple_of(LANES);
    assert!(range.start.is_multiple_of(LANES) && ends, "whole panels");
    range.start / LANES
}

/// One panel of a weight for `x W^T`: the rows of `w`, `depth` values each, become columns.
struct Transpose<'a> {
    w: &'a [f32],
    depth: usize,
    rows: &'a mut [Row],
}

impl Kernel for Transpose<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let (depth, step) = (self.depth, L::WIDTH);
        let whole = depth / step * step;
        for k in (0..whole).step_by(step) {
            for (w, column) in self.w.chunks(step * depth).zip((0..LANES).step_by(step)) {
                let mut square = [Reg::splat(l, 0.0); 16];
                for (r, w) in square.iter_mut().zip(w.chunks_exact(depth)) {
                    // SAFETY: the slice has WIDTH elements.
                    *r = unsafe { Reg::load(l, w[k..k + step].as_ptr()) };
                }
                l.transpose(&mut square);
                for (r, row) in square.iter().zip(&mut self.rows[k..k + step]) {
                    // SAFETY: as above.
                    unsafe { Reg::store(l, row.0[column..column + step].as_mut_ptr(), *r) };
                }
            }
        }
        for k in whole..depth {
            let column = self.w[k..].iter().step_by(depth);
            self.rows[k].0.iter_mut().zip(column).for_each(|(to, x)| *to = *x);
        }
    }
}

/// A part of [`Panels`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    rows: &'a [Row],
    /// Rows from one panel to the next.
    pub(super) step: usize,
    pub(crate) depth: usize,
    pub(crate) columns: usize,
}

impl<'a> View<'a> {
    /// The columns `range`, from a multiple of 32 on.
    pub(crate) fn columns(self, range: Range<usize>) -> View<'a> {
        assert!(range.start.is_multiple_of(LANES) && range.end <= self.columns, "whole panels");
        View { rows: &self.rows[range.start / LANES * self.step..], columns: range.len(), ..self }
    }

    /// The elements at depths `range` of all columns.
    pub(crate) fn depths(self, range: Range<usize>) -> View<'a> {
        assert!(range.end <= self.depth, "depths that are there");
        View { rows: &self.rows[range.start..], depth: range.len(), ..self }
    }

    /// The address of row `k` of panel `p`, and a check that `depth` rows from it on are there.
    pub(super) fn row(&self, p: usize, k: usize, depth: usize) -> *const f32 {
        self.rows[p * self.step + k..][..depth].as_ptr().cast()
    }
}
