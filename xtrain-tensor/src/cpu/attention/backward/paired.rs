//! Operands as pairs of bf16, for `vdpbf16ps` and `tdpbf16ps`. These instructions read denormals as zeros and flush tiny
//! results, so no exponents are needed.
//!
//! Some values are operands of two products. Queries and dy are packed by row as left operands and in groups of rows
//! as right operands; ds is packed by row and transposed, as left operand each time; p is only packed transposed.
use std::ops::Range;

use half::bf16;

use super::operands::Operands;
use crate::cpu::attention::gather::HeadView;
use crate::cpu::attention::kv_element::KvElement;
use crate::cpu::attention::number::Number;
use crate::cpu::attention::operands::ChunkSource;
use crate::cpu::attention::paired::{Group, SLOT_BLOCKS, Values, pack_keys, pack_values};
use crate::cpu::attention::rows::{CHUNK, widen};
use crate::cpu::gemm::Beta;
use crate::cpu::gemm_bf16::{BLOCK, MinExponent, PairProduct, Pairs, Rows, TILE, View, transpose_pairs};
use crate::cpu::lanes::{LANES, Lanes};
use crate::cpu::scratch::Buffer;
use crate::faults::{self, Fault};

/// The memory of [`Paired`] for some positions.
pub(super) struct PairedMemory<P: PairProduct> {
    left: Buffer<P::Block>,
    right: Buffer<Pairs>,
    all: usize,
    blocks: usize,
}

impl<P: PairProduct> PairedMemory<P> {
    /// `len`: positions, a multiple of 64. `width`: elements of a padded vector, a multiple of 32.
    pub(super) fn new(len: usize, width: usize) -> PairedMemory<P> {
        let blocks = width / BLOCK;
        let (all, tile) = (len * blocks, CHUNK * SLOT_BLOCKS);
        let left = Buffer::new(2 * all + 3 * tile);
        let right =
            Buffer::new(5 * all + 2 * tile + (TILE + 2 * P::GROUP) * blocks + 2 * P::GROUP * SLOT_BLOCKS);
        PairedMemory { left, right, all, blocks }
    }

    /// `scores`: memory for the scores and for dp of a tile, `[64][64]` each.
    pub(super) fn operands<'b>(&'b mut self, product: P, scores: [&'b mut [f32]; 2]) -> Paired<'b, P> {
        let (all, blocks, tile) = (self.all, self.blocks, CHUNK * SLOT_BLOCKS);
        let (mut left, mut right) = (&mut self.left[..], &mut self.right[..]);
        let mut left = |len| left.split_off_mut(..len).expect("the total was reserved");
        let mut right = |len| right.split_off_mut(..len).expect("the total was reserved");
        Paired {
            product,
            blocks,
            keys: right(all),
            values: right(all),
            keys_by_row: right(all),
            rows: right(TILE * blocks),
            q: PairedRows { left: left(all), group: right(P::GROUP * blocks), right: right(all) },
            dy: PairedRows { left: left(all), group: right(P::GROUP * blocks), right: right(all) },
            scores,
            ds: left(tile),
            p_t: TransposedTile {
                group: right(P::GROUP * SLOT_BLOCKS),
                packed: right(tile),
                left: left(tile),
            },
            ds_t: TransposedTile {
                group: right(P::GROUP * SLOT_BLOCKS),
                packed: right(tile),
                left: left(tile),
            },
        }
    }
}

/// Vectors are padded with zeros to `blocks` blocks of 32.
pub(super) struct Paired<'b, P: PairProduct> {
    product: P,
    blocks: usize,
    /// By chunk of 64 keys: transposed keys and values; keys.
    keys: &'b mut [Pairs],
    values: &'b mut [Pairs],
    keys_by_row: &'b mut [Pairs],
    /// The keys or values that are packed next: `[blocks][16]`.
    rows: &'b mut [Pairs],
    q: PairedRows<'b, P>,
    dy: PairedRows<'b, P>,
    /// Scores and dp: `[64][64]`.
    scores: [&'b mut [f32]; 2],
    /// `[64][2]`.
    ds: &'b mut [P::Block],
    p_t: TransposedTile<'b, P>,
    ds_t: TransposedTile<'b, P>,
}

/// Vectors by position, as left and as right operand.
struct PairedRows<'b, P: PairProduct> {
    /// `[positions][blocks]`.
    left: &'b mut [P::Block],
    /// The group of rows that is packed next: `[blocks][P::GROUP]`.
    group: &'b mut [Pairs],
    /// By block of 64 positions: panels of 32 elements, `[blocks][2][2][16]`.
    right: &'b mut [Pairs],
}

impl<P: PairProduct> PairedRows<'_, P> {
    #[inline(always)]
    fn set<L: Lanes, E: Number>(&mut self, l: L, blocks: usize, t: usize, x: &[E]) {
        <E as KvElement<E>>::bf16_row(l, x, self.group[t % P::GROUP..].iter_mut().step_by(P::GROUP));
        self.finish(l, blocks, t);
    }

    #[inline(always)]
    fn set_zero<L: Lanes>(&mut self, l: L, blocks: usize, t: usize) {
        for row in self.group[t % P::GROUP..].iter_mut().step_by(P::GROUP) {
            *row = Pairs([bf16::ZERO; BLOCK]);
        }
        self.finish(l, blocks, t);
    }

    /// Packs row `t`, and its group if it is the last one of it.
    #[inline(always)]
    fn finish<L: Lanes>(&mut self, l: L, blocks: usize, t: usize) {
        let rows = self.group[t % P::GROUP..].iter().step_by(P::GROUP);
        for (row, left) in rows.zip(&mut self.left[t * blocks..]) {
            *left = P::block(row);
        }
        if t % P::GROUP == P::GROUP - 1 {
            Values::<P>::pack(l, self.group, t % CHUNK, &mut self.right[t / CHUNK * CHUNK * blocks..]);
        }
    }
}

/// The transpose of a tile of weights, as left operand.
struct TransposedTile<'b, P: PairProduct> {
    /// The group of rows that is packed next: `[2][P::GROUP]`.
    group: &'b mut [Pairs],
    /// Panels of 32 keys, `[2][2][2][16]`: a row is the pairs of 16 keys.
    packed: &'b mut [Pairs],
    /// By key: `[64][2]`.
    left: &'b mut [P::Block],
}

impl<P: PairProduct> TransposedTile<'_, P> {
    /// Sets row `i`, rounded. Returns its two blocks.
    #[inline(always)]
    fn set<L: Lanes>(&mut self, l: L, i: usize, x: [L::F; 2]) -> [&Pairs; 2] {
        for (x, row) in x.into_iter().zip(self.group[i % P::GROUP..].iter_mut().step_by(P::GROUP)) {
            l.store_bf16(&mut row.0, x);
        }
        if i % P::GROUP == P::GROUP - 1 {
            Values::<P>::pack(l, self.group, i, self.packed);
        }
        [&self.group[i % P::GROUP], &self.group[i % P::GROUP + P::GROUP]]
    }

    /// Transposes the first `rows` rows.
    #[inline(always)]
    fn finish<L: Lanes>(&mut self, l: L, rows: usize) {
        let rows = if faults::on(Fault::LastBlockNotTransposed) { rows - BLOCK } else { rows };
        let mut columns = [Pairs([bf16::ZERO; BLOCK]); TILE];
        for (t, tile) in self.packed.as_chunks().0.iter().enumerate() {
            let (panel, block, half) = (t / (2 * SLOT_BLOCKS), t / 2 % SLOT_BLOCKS, t % 2);
            if block * BLOCK >= rows {
                continue;
            }
            transpose_pairs(l, tile, &mut columns);
            let first = panel * BLOCK + half * TILE;
            let to = self.left[first * SLOT_BLOCKS + block..].iter_mut().step_by(SLOT_BLOCKS);
            for (to, column) in to.zip(columns) {
                *to = P::block_of_pairs(column);
            }
        }
    }
}

impl<E: Number, P: PairProduct> Operands<E> for Paired<'_, P> {
    const STEP: usize = BLOCK;
    const STRIP: usize = P::STRIP;

    #[inline(always)]
    fn read_keys<L: Lanes>(
        &mut self,
        l: L,
        view: HeadView<'_>,
        [k, v]: [&[E]; 2],
        len: usize,
        _: &mut [MinExponent<L>; 2],
    ) {
        let chunk = CHUNK * self.blocks;
        for c in 0..len.div_ceil(CHUNK) {
            let (visible, at) = (0..CHUNK.min(len - c * CHUNK), c * chunk..(c + 1) * chunk);
            let [keys, values] = [k, v].map(|x| ChunkSource { view, x, c, visible: visible.clone() });
            pack_keys::<L, E, E, P>(l, self.blocks, &keys, self.rows, &mut self.keys[at.clone()]);
            pack_keys::<L, E, E, P>(l, self.blocks, &values, self.rows, &mut self.values[at.clone()]);
            pack_values::<L, E, E, P>(l, self.blocks, &keys, self.rows, &mut self.keys_by_row[at]);
        }
    }

    #[inline(always)]
    fn set_row<L: Lanes>(&mut self, l: L, t: usize, [q, dy]: [&[E]; 2], _: &mut [MinExponent<L>; 2]) {
        self.q.set(l, self.blocks, t, q);
        self.dy.set(l, self.blocks, t, dy);
    }

    #[inline(always)]
    fn set_no_row<L: Lanes>(&mut self, l: L, t: usize) {
        self.q.set_zero(l, self.blocks, t);
        self.dy.set_zero(l, self.blocks, t);
    }

    #[inline(always)]
    fn scores(&mut self, rows: Range<usize>, c: usize, cols: Range<usize>, _: [bool; 2]) {
        let blocks = self.blocks;
        let panels = cols.start / LANES..cols.end.div_ceil(LANES);
        let pairs = [(&*self.q.left, &*self.keys), (&*self.dy.left, &*self.values)];
        for ((left, right), out) in pairs.into_iter().zip(&mut self.scores) {
            let a = Rows { blocks: &left[rows.start * blocks..], step: blocks, len: rows.len() };
            let b = View::of_pairs(&right[c * CHUNK * blocks..], [blocks * BLOCK, CHUNK]);
            let out = &mut out[rows.start % CHUNK * CHUNK..];
            self.product.product(a, b, panels.clone(), out, CHUNK, Beta::Zero);
        }
    }

    #[inline(always)]
    fn scores_of(&self, i: usize) -> [&[f32]; 2] {
        [&self.scores[0][i * CHUNK..(i + 1) * CHUNK], &self.scores[1][i * CHUNK..(i + 1) * CHUNK]]
    }

    #[inline(always)]
    fn set_weights<L: Lanes>(
        &mut self,
        l: L,
        i: usize,
        [p, ds]: [[L::F; 2]; 2],
        _: &mut [MinExponent<L>; 2],
    ) {
        self.p_t.set(l, i, p);
        for (to, block) in self.ds[i * SLOT_BLOCKS..].iter_mut().zip(self.ds_t.set(l, i, ds)) {
            *to = P::block(block);
        }
    }

    #[inline(always)]
    fn finish_weights<L: Lanes>(&mut self, l: L, rows: usize) {
        self.p_t.finish(l, rows);
        self.ds_t.finish(l, rows);
    }

    #[inline(always)]
    fn add_dq(&self, rows: Range<usize>, c: usize, depth: Range<usize>, out: &mut [f32], _: bool) {
        let (blocks, depth) = (self.blocks, widen(depth, BLOCK));
        let left = &self.ds[rows.start % CHUNK * SLOT_BLOCKS + depth.start / BLOCK..];
        let a = Rows { blocks: left, step: SLOT_BLOCKS, len: rows.len() };
        let right = &self.keys_by_row[c * CHUNK * blocks..];
        let b = View::of_pairs(right, [CHUNK, blocks * LANES]).depths(depth);
        self.product.product(a, b, 0..blocks, out, blocks * LANES, Beta::One);
    }

    #[inline(always)]
    fn add_dk_dv(
        &self,
        keys: Range<usize>,
        block: usize,
        depth: Range<usize>,
        dk_dv: [&mut [f32]; 2],
        _: [bool; 2],
    ) {
        let (blocks, depth) = (self.blocks, widen(depth, BLOCK));
        for ((tile, rows), out) in [(&self.ds_t, &self.q), (&self.p_t, &self.dy)].into_iter().zip(dk_dv) {
            let left = &tile.left[keys.start % CHUNK * SLOT_BLOCKS + depth.start / BLOCK..];
            let a = Rows { blocks: left, step: SLOT_BLOCKS, len: keys.len() };
            let right = &rows.right[block * CHUNK * blocks..];
            let b = View::of_pairs(right, [CHUNK, blocks * LANES]).depths(depth.clone());
            self.product.product(a, b, 0..blocks, out, blocks * LANES, Beta::One);
        }
    }
}
