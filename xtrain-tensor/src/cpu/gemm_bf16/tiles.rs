//! bf16 weights as all paths read them: AMX's own tile layout.
use half::bf16;

use super::super::Pool;
use super::super::lanes::LANES;
use super::super::scratch::{Buffer, scratch};
use super::{BLOCK, NO_LOW, Operand, lower, widen};

/// One row of a tile: 16 columns, of each the elements 2r and 2r + 1 of the block.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Pairs(pub(super) [bf16; 32]);
scratch!(Pairs, Pairs([bf16::ZERO; 32]));

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
        Tiles::pack(pool, [depth, columns], |k, o| w[o * depth + k])
    }

    /// Packs a weight `[out, in]` for `dy W`: depth `out`, columns `in`.
    pub(crate) fn of_weight_transposed<T: Operand>(pool: &Pool, w: &[T], shape: [usize; 2]) -> Tiles {
        let [depth, columns] = shape;
        assert_eq!(w.len(), depth * columns, "a weight holds out * in values");
        Tiles::pack(pool, [depth, columns], |k, i| w[k * columns + i])
    }

    /// Packs rows `rows[k]` of a row-major x `[.., columns]`; a row number past x's end is a row of +0.
    pub(super) fn of_rows<T: Operand>(pool: &Pool, x: &[T], columns: usize, rows: &[usize]) -> Tiles
    where
        T: Default,
    {
        let at = |k: usize, i: usize| x.get(rows[k].saturating_mul(columns).saturating_add(i));
        Tiles::pack(pool, [rows.len(), columns], |k, i| at(k, i).copied().unwrap_or_default())
    }

    fn pack<T: Operand>(
        pool: &Pool,
        [depth, columns]: [usize; 2],
        at: impl Fn(usize, usize) -> T + Sync,
    ) -> Tiles {
        let panel = depth.div_ceil(BLOCK) * BLOCK_ROWS;
        let panels = columns.div_ceil(LANES);
        let mut rows = Buffer::of(panels * panel);
        pool.parts(&mut rows, panel, |p, rows: &mut [Pairs]| {
            for (r, row) in rows.iter_mut().enumerate() {
                *row = Pairs([bf16::ZERO; 32]);
                let k = r / BLOCK_ROWS * BLOCK + r % 16 * 2;
                let first = p * LANES + r % BLOCK_ROWS / 16 * 16;
                for j in 0..16.min(columns.saturating_sub(first)) {
                    for h in 0..2.min(depth.saturating_sub(k)) {
                        row.0[2 * j + h] = at(k + h, first + j).enter();
                    }
                }
            }
        });
        let mut low = vec![NO_LOW; panels];
        pool.parts(&mut low, 1, |p, low| {
            let elements = rows[p * panel..][..panel].iter().flat_map(|row| row.0);
            low[0] = elements.fold(NO_LOW, lower);
        });
        Tiles { rows, low, depth, columns }
    }

    /// `[depth, columns]`.
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.depth, self.columns]
    }

    /// The element at depth `k` of column `j`.
    pub(crate) fn at(&self, k: usize, j: usize) -> f32 {
        let block = &self.panel(j / LANES)[k / BLOCK * BLOCK_ROWS..];
        widen(block[j % LANES / 16 * 16 + k % BLOCK / 2].0[j % 16 * 2 + k % 2])
    }

    /// Bytes held, padding included.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.rows[..]) + self.low.len()
    }

    /// Blocks along the depth.
    pub(super) fn blocks(&self) -> usize {
        self.depth.div_ceil(BLOCK)
    }

    /// The rows of panel `p`.
    pub(super) fn panel(&self, p: usize) -> &[Pairs] {
        let rows = self.blocks() * BLOCK_ROWS;
        &self.rows[p * rows..][..rows]
    }

    /// The smallest exponent field in panel `p`.
    pub(super) fn low(&self, p: usize) -> u8 {
        self.low[p]
    }
}
