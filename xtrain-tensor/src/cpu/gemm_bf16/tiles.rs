//! bf16 weights as all paths read them: AMX's own tile layout.
use std::ops::Range;

use half::bf16;

use super::super::Pool;
use super::super::lanes::LANES;
use super::super::scratch::{Buffer, Scratch, scratch};
#[cfg(test)]
use super::widen;
use super::{BLOCK, NO_LOW, Operand, entered, lowest};

/// One row of a tile: 16 columns, of each the elements 2r and 2r + 1 of the block.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Pairs(pub(super) [bf16; 32]);
scratch!(Pairs, Pairs([bf16::ZERO; 32]));

/// Rows and columns of a tile.
const TILE: usize = 16;

/// Rows of a panel's block: two tiles (columns 0..16 and 16..32) of 16 rows.
pub(super) const BLOCK_ROWS: usize = 32;

/// A matrix B `[depth, columns]` as `[ceil(columns / 32)][ceil(depth / 32)][2 tiles][16][16][2]`, padded
/// with +0, denormals stored as zeros of their sign.
#[derive(Debug, Clone)]
pub(crate) struct Tiles {
    rows: Buffer<Pairs>,
    /// Smallest exponent field of each panel's non-zero elements.
    low: Vec<u8>,
    depth: usize,
    columns: usize,
}

impl Tiles {
    /// Packs a weight `[out, in]` for `x W^T`: depth `in`, columns `out`.
    pub(crate) fn of_weight<T: Operand>(pool: &Pool, w: &[T], shape: [usize; 2]) -> Tiles {
        let [columns, depth] = shape;
        assert_eq!(w.len(), columns * depth, "a weight holds out * in values");
        Tiles::pack(pool, [depth, columns], 1, |k, first, tile| {
            let len = BLOCK.min(depth - k);
            for j in 0..TILE.min(columns.saturating_sub(first)) {
                let column: [bf16; BLOCK] = entered(&w[(first + j) * depth + k..][..len]);
                for (row, pair) in tile.iter_mut().zip(column.as_chunks().0) {
                    row.0.as_chunks_mut::<2>().0[j] = *pair;
                }
            }
        })
    }

    /// Packs a weight `[out, in]` for `dy W`: depth `out`, columns `in`.
    pub(crate) fn of_weight_transposed<T: Operand>(pool: &Pool, w: &[T], shape: [usize; 2]) -> Tiles {
        let [depth, columns] = shape;
        assert_eq!(w.len(), depth * columns, "a weight holds out * in values");
        Tiles::of_lines(pool, shape, |k| &w[k * columns..][..columns])
    }

    /// Packs the matrix whose row k is `line(k)`: `columns` values, or none for a row of zeros.
    pub(super) fn of_lines<'a, T: Operand + 'a>(
        pool: &Pool,
        [depth, columns]: [usize; 2],
        line: impl Fn(usize) -> &'a [T] + Sync,
    ) -> Tiles {
        Tiles::pack(pool, [depth, columns], 4, |k, first, tile| {
            let part = |k: usize| -> [bf16; TILE] {
                let line = if k < depth { line(k) } else { &[] };
                entered(&line[first.min(line.len())..(first + TILE).min(line.len())])
            };
            for (r, row) in tile.iter_mut().enumerate() {
                let (even, odd) = (part(k + 2 * r), part(k + 2 * r + 1));
                for (pair, (even, odd)) in row.0.as_chunks_mut().0.iter_mut().zip(even.iter().zip(&odd)) {
                    *pair = [*even, *odd];
                }
            }
        })
    }

    /// `fill(k, column, tile)` writes the tile from there on over zeros. `near` panels are packed
    /// together, block by block: so lines of the source are read along.
    fn pack(
        pool: &Pool,
        [depth, columns]: [usize; 2],
        near: usize,
        fill: impl Fn(usize, usize, &mut [Pairs]) + Sync,
    ) -> Tiles {
        let panel = depth.div_ceil(BLOCK) * BLOCK_ROWS;
        let panels = columns.div_ceil(LANES);
        let mut rows = Buffer::of(panels * panel);
        pool.parts(&mut rows, panel * near, |part, rows: &mut [Pairs]| {
            rows.fill(Pairs::BLANK);
            for block in 0..panel / BLOCK_ROWS {
                for (p, rows) in rows.chunks_exact_mut(panel).enumerate() {
                    let rows = &mut rows[block * BLOCK_ROWS..][..BLOCK_ROWS];
                    let column = (part * near + p) * LANES;
                    for (t, tile) in rows.chunks_exact_mut(TILE).enumerate() {
                        fill(block * BLOCK, column + t * TILE, tile);
                    }
                }
            }
        });
        let mut low = vec![NO_LOW; panels];
        for (low, rows) in low.iter_mut().zip(rows.chunks_exact(panel.max(1))) {
            *low = rows.iter().fold(NO_LOW, |low, row| low.min(lowest(&row.0)));
        }
        Tiles { rows, low, depth, columns }
    }

    /// `[depth, columns]`.
    #[cfg(test)]
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.depth, self.columns]
    }

    /// The element at depth `k` of column `j`.
    #[cfg(test)]
    pub(crate) fn at(&self, k: usize, j: usize) -> f32 {
        let block = &self.view().panel(j / LANES)[k / BLOCK * BLOCK_ROWS..];
        widen(block[j % LANES / 16 * 16 + k % BLOCK / 2].0[j % 16 * 2 + k % 2])
    }

    /// Bytes held, padding included.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.rows[..]) + self.low.len()
    }

    /// The whole matrix.
    pub(crate) fn view(&self) -> View<'_> {
        let blocks = self.depth.div_ceil(BLOCK);
        View { rows: &self.rows, low: &self.low, step: blocks, depth: self.depth, columns: self.columns }
    }
}

/// A part of [`Tiles`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    rows: &'a [Pairs],
    low: &'a [u8],
    /// Blocks from one panel to the next.
    step: usize,
    depth: usize,
    columns: usize,
}

impl<'a> View<'a> {
    /// The columns `range`, from a multiple of 32 on.
    pub(crate) fn columns(self, range: Range<usize>) -> View<'a> {
        assert!(range.start.is_multiple_of(LANES) && range.end <= self.columns, "whole panels");
        let panel = range.start / LANES;
        let rows = &self.rows[panel * self.step * BLOCK_ROWS..];
        View { rows, low: &self.low[panel..], columns: range.len(), ..self }
    }

    /// The elements at depths `range` of all columns; from a multiple of 32 on, and up to one or to the end.
    pub(crate) fn depths(self, range: Range<usize>) -> View<'a> {
        let whole = range.end == self.depth || range.end.is_multiple_of(BLOCK) && range.end < self.depth;
        assert!(range.start.is_multiple_of(BLOCK) && whole, "whole blocks");
        View { rows: &self.rows[range.start / BLOCK * BLOCK_ROWS..], depth: range.len(), ..self }
    }

    /// `[depth, columns]`.
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.depth, self.columns]
    }

    /// Blocks along the depth.
    pub(super) fn blocks(&self) -> usize {
        self.depth.div_ceil(BLOCK)
    }

    /// The rows of panel `p`.
    pub(super) fn panel(&self, p: usize) -> &'a [Pairs] {
        &self.rows[p * self.step * BLOCK_ROWS..][..self.blocks() * BLOCK_ROWS]
    }

    /// An exponent field that no non-zero element of panel `p` is below.
    pub(super) fn low(&self, p: usize) -> u8 {
        self.low[p]
    }
}
