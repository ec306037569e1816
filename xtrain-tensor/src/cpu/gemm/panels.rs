//! Weights as the f32 products read them: panels of 32 columns, packed once per update.

use std::ops::Range;

use super::super::Pool;
use super::super::lanes::LANES;
use super::super::scratch::{Buffer, scratch};
use super::LINE;

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
    pub(crate) fn of_weight(pool: &Pool, w: &[f32], shape: [usize; 2]) -> Panels {
        let [out, depth] = shape;
        assert_eq!(w.len(), out * depth, "a weight holds out * in values");
        Panels::pack(pool, [depth, out], |panel, rows| {
            // a line of each output at a time, which is then written into as many rows
            for (i, rows) in rows.chunks_mut(LINE).enumerate() {
                for (o, column) in (panel.clone()).zip(0..LANES) {
                    let line = &w[o * depth + i * LINE..][..rows.len()];
                    rows.iter_mut().zip(line).for_each(|(row, x)| row.0[column] = *x);
                }
            }
        })
    }

    /// Packs a weight `[out, in]` for `dy W`: depth `out`, columns `in`.
    pub(crate) fn of_weight_transposed(pool: &Pool, w: &[f32], shape: [usize; 2]) -> Panels {
        let [depth, columns] = shape;
        assert_eq!(w.len(), depth * columns, "a weight holds out * in values");
        Panels::pack(pool, [depth, columns], |panel, rows| {
            for (row, w) in rows.iter_mut().zip(w.chunks_exact(columns)) {
                // a copy of known length is two moves, not a call
                match <&[f32; LANES]>::try_from(&w[panel.clone()]) {
                    Ok(w) => row.0 = *w,
                    Err(_) => row.0[..panel.len()].copy_from_slice(&w[panel.clone()]),
                }
            }
        })
    }

    /// `fill(columns, rows)` writes a panel; one that is not whole is zero before.
    fn pack(
        pool: &Pool,
        [depth, columns]: [usize; 2],
        fill: impl Fn(Range<usize>, &mut [Row]) + Sync,
    ) -> Panels {
        let mut rows = Buffer::of(columns.div_ceil(LANES) * depth);
        pool.parts(&mut rows, depth, |p, rows: &mut [Row]| {
            let panel = p * LANES..columns.min((p + 1) * LANES);
            if panel.len() < LANES {
                rows.fill(Row([0.0; LANES]));
            }
            fill(panel, rows);
        });
        Panels { rows, depth, columns }
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
