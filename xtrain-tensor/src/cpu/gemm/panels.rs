//! Weights as the f32 products read them: panels of 32 columns, packed once per update.

use std::ops::Range;

use super::super::Pool;
use super::super::lanes::LANES;
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
    pub(crate) fn of_weight(pool: &Pool, w: &[f32], shape: [usize; 2]) -> Panels {
        let [out, depth] = shape;
        assert_eq!(w.len(), out * depth, "a weight holds out * in values");
        Panels::pack(pool, [depth, out], |k, columns, row| {
            for (o, x) in columns.zip(row) {
                *x = w[o * depth + k];
            }
        })
    }

    /// Packs a weight `[out, in]` for `dy W`: depth `out`, columns `in`.
    pub(crate) fn of_weight_transposed(pool: &Pool, w: &[f32], shape: [usize; 2]) -> Panels {
        let [depth, columns] = shape;
        assert_eq!(w.len(), depth * columns, "a weight holds out * in values");
        Panels::pack(pool, [depth, columns], |k, range, row| {
            row[..range.len()].copy_from_slice(&w[k * columns..][range]);
        })
    }

    fn pack(
        pool: &Pool,
        [depth, columns]: [usize; 2],
        fill: impl Fn(usize, Range<usize>, &mut [f32]) + Sync,
    ) -> Panels {
        let mut rows = Buffer::of(columns.div_ceil(LANES) * depth);
        pool.parts(&mut rows, depth, |p, rows: &mut [Row]| {
            for (k, row) in rows.iter_mut().enumerate() {
                *row = Row([0.0; LANES]);
                fill(k, p * LANES..columns.min((p + 1) * LANES), &mut row.0);
            }
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
