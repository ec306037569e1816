//! The packed B operand of f32 products: panels of 32 columns, packed once per update.

use std::ops::Range;

use super::super::Cpu;
use super::super::lanes::{Kernel, LANES, Lanes, Reg, dispatch};
use super::super::scratch::{Scratch, scratch};
use crate::device::packed_buffer::PackedBuffer;
use crate::error::Result;

/// One row (one k) of a panel, aligned to cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Row(pub(super) [f32; LANES]);
scratch!(Row, Row([0.0; LANES]));

/// A matrix B `[depth, columns]`, packed as panels `[ceil(columns / 32)][depth][32]` and padded with +0.
#[derive(Debug)]
pub(crate) struct Panels {
    pub(super) rows: PackedBuffer<Row>,
    depth: usize,
    columns: usize,
}

impl Panels {
    /// Packs a weight `[out, in]` for `x W^T`: depth `in`, columns `out`.
    pub(crate) fn of_weight(cpu: &Cpu, w: &[f32], shape: [usize; 2]) -> Result<Panels> {
        let [out, depth] = shape;
        assert_eq!(w.len(), out * depth, "a weight holds out * in values");
        let mut panels = Panels::blank(cpu, [depth, out])?;
        panels.write(cpu, 0, w);
        Ok(panels)
    }

    /// Panels that are not written yet.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory): there is no memory for them.
    pub(crate) fn blank(cpu: &Cpu, [depth, columns]: [usize; 2]) -> Result<Panels> {
        let rows = PackedBuffer::with_capacity(&cpu.recycler, columns.div_ceil(LANES) * depth)?;
        Ok(Panels { rows, depth, columns })
    }

    /// Packs rows of a weight `[out, in]` starting at row `first`, a multiple of 32. Their number is a multiple of
    /// 32, unless they extend to the last row.
    pub(crate) fn write(&mut self, cpu: &Cpu, first: usize, w: &[f32]) {
        let depth = self.depth;
        self.pack(cpu, first..first + w.len() / depth.max(1), |panel, rows| {
            let w = &w[(panel.start - first) * depth..(panel.end - first) * depth];
            dispatch(cpu.simd, Transpose { w, depth, rows });
        });
    }

    /// Bytes of the panels.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.rows)
    }

    /// Unpacks column `j`. For a weight packed for `x W^T` this is row `j`.
    pub(crate) fn column(&self, j: usize, to: &mut [f32]) {
        let rows = &self.rows[j / LANES * self.depth..];
        to.iter_mut().zip(rows).for_each(|(to, row)| *to = row.0[j % LANES]);
    }

    /// Packs a weight `[out, in]` for `dy W`: depth `out`, columns `in`.
    pub(crate) fn of_weight_transposed(cpu: &Cpu, w: &[f32], shape: [usize; 2]) -> Result<Panels> {
        let [depth, columns] = shape;
        assert_eq!(w.len(), depth * columns, "a weight holds out * in values");
        let mut panels = Panels::blank(cpu, [depth, columns])?;
        panels.pack(cpu, 0..columns, |panel, rows| {
            for (row, w) in rows.iter_mut().zip(w.chunks_exact(columns)) {
                // a copy of constant length is two moves, not a call
                match <&[f32; LANES]>::try_from(&w[panel.clone()]) {
                    Ok(w) => row.0 = *w,
                    Err(_) => row.0[..panel.len()].copy_from_slice(&w[panel.clone()]),
                }
            }
        });
        Ok(panels)
    }

    /// Packs the columns `range`: `fill(columns, rows)` writes one panel, zeroed if it has fewer than 32 columns.
    fn pack(&mut self, cpu: &Cpu, range: Range<usize>, fill: impl Fn(Range<usize>, &mut [Row]) + Sync) {
        let (first, columns) = (first_panel(&range, self.columns), self.columns);
        self.rows.grow(range.end.div_ceil(LANES) * self.depth, Row::BLANK);
        let rows = &mut self.rows[first * self.depth..range.end.div_ceil(LANES) * self.depth];
        cpu.pool.parts(rows, self.depth, |p, rows: &mut [Row]| {
            let panel = (first + p) * LANES..columns.min((first + p + 1) * LANES);
            if panel.len() < LANES {
                rows.fill(Row([0.0; LANES]));
            }
            fill(panel, rows);
        });
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { rows: &self.rows, step: self.depth, depth: self.depth, columns: self.columns }
    }
}

/// Checks that the columns `range` of `columns` are whole panels. Returns the first of these panels.
pub(crate) fn first_panel(range: &Range<usize>, columns: usize) -> usize {
    let ends = range.end == columns || range.end < columns && range.end.is_multiple_of(LANES);
    assert!(range.start.is_multiple_of(LANES) && ends, "whole panels");
    range.start / LANES
}

/// Packs one panel of a weight for `x W^T`: the rows of `w`, `depth` values each, become columns.
struct Transpose<'a> {
    w: &'a [f32],
    depth: usize,
    rows: &'a mut [Row],
}

impl Kernel for Transpose<'_> {
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
    /// Rows between panels.
    pub(super) step: usize,
    pub(crate) depth: usize,
    pub(crate) columns: usize,
}

impl<'a> View<'a> {
    /// The columns `range`. It starts at a multiple of 32.
    pub(crate) fn columns(self, range: Range<usize>) -> View<'a> {
        assert!(range.start.is_multiple_of(LANES) && range.end <= self.columns, "whole panels");
        View { rows: &self.rows[range.start / LANES * self.step..], columns: range.len(), ..self }
    }

    /// All columns at the depths `range`.
    pub(crate) fn depths(self, range: Range<usize>) -> View<'a> {
        assert!(range.end <= self.depth, "depths within the panels");
        View { rows: &self.rows[range.start..], depth: range.len(), ..self }
    }

    /// Returns the address of row `k` of panel `p`. Checks that it is followed by `depth` rows, itself included.
    pub(super) fn row(&self, p: usize, k: usize, depth: usize) -> *const f32 {
        self.rows[p * self.step + k..][..depth].as_ptr().cast()
    }
}
