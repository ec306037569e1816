//! Operands as pairs of bf16, for `vdpbf16ps` and `tdpbf16ps`. These instructions read denormals as zeros and flush tiny
//! results, so no exponents are needed.
use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;

use super::gather::{Prefetcher, Reader};
use super::kv_element::KvElement;
use super::number::Number;
use super::operands::{ChunkSource, Operands};
use super::rows::CHUNK;
use crate::cpu::gemm::Beta;
use crate::cpu::gemm_bf16::{BLOCK, MinExponent, PairProduct, Pairs, Rows, TILE, View, transpose_pairs};
use crate::cpu::lanes::{LANES, Lanes};
use crate::cpu::scratch::Buffer;

/// Blocks of 32 slots in a chunk.
pub(super) const SLOT_BLOCKS: usize = CHUNK / BLOCK;

/// Rows of a packed block: two tiles of 16.
const BLOCK_ROWS: usize = 2 * TILE;

/// The memory of [`Paired`] for some query vectors of some blocks.
pub(super) struct PairedMemory<P: PairProduct> {
    left: Buffer<P::Block>,
    right: Buffer<Pairs>,
    vectors: usize,
    blocks: usize,
}

impl<P: PairProduct> PairedMemory<P> {
    /// `width`: elements of a padded vector, a multiple of 32.
    pub(super) fn new(vectors: usize, width: usize) -> PairedMemory<P> {
        let blocks = width / BLOCK;
        let (left, right) =
            (Buffer::new(vectors * (blocks + SLOT_BLOCKS)), Buffer::new((TILE + 2 * CHUNK) * blocks));
        PairedMemory { left, right, vectors, blocks }
    }

    /// `s`: memory for `[vectors][64]` scores.
    pub(super) fn operands<'b>(&'b mut self, product: P, s: &'b mut [f32]) -> Paired<'b, P> {
        let (q, p) = self.left.split_at_mut(self.vectors * self.blocks);
        let (rows, packed) = self.right.split_at_mut(TILE * self.blocks);
        let (keys, values) = packed.split_at_mut(CHUNK * self.blocks);
        Paired { product, blocks: self.blocks, q, p, s, rows, keys, values }
    }
}

/// Vectors are padded with zeros to `blocks` blocks of 32.
pub(super) struct Paired<'b, P: PairProduct> {
    product: P,
    blocks: usize,
    /// `[vectors][blocks]`.
    q: &'b mut [P::Block],
    /// `[vectors][2]`.
    p: &'b mut [P::Block],
    /// `[vectors][64]`.
    s: &'b mut [f32],
    /// The rows that are packed next: `[blocks][16]`.
    rows: &'b mut [Pairs],
    /// The transposed keys: panels of 32 slots, `[2][blocks][2][16]`.
    keys: &'b mut [Pairs],
    /// The values: panels of 32 elements, `[blocks][2][2][16]`.
    values: &'b mut [Pairs],
}

impl<'a, E: Number, K: KvElement<E>, P: PairProduct> Operands<'a, E, K> for Paired<'_, P> {
    const STRIP: usize = P::STRIP;

    #[inline(always)]
    fn set_query<L: Lanes>(&mut self, l: L, i: usize, q: &[E], _: &mut MinExponent<L>) {
        <E as KvElement<E>>::bf16_row(l, q, self.rows.iter_mut().take(self.blocks));
        for (q, values) in self.q[i * self.blocks..].iter_mut().zip(&self.rows[..self.blocks]) {
            *q = P::block(values);
        }
    }

    #[inline(always)]
    fn read_keys<L: Lanes>(
        &mut self,
        l: L,
        from: &ChunkSource<'a, K>,
        _: &mut Prefetcher,
        _: &mut MinExponent<L>,
    ) {
        pack_keys::<L, E, K, P>(l, self.blocks, from, self.rows, self.keys);
    }

    #[inline(always)]
    fn scores(&mut self, vectors: Range<usize>, cols: Range<usize>, _: bool) {
        let a =
            Rows { blocks: &self.q[vectors.start * self.blocks..], step: self.blocks, len: vectors.len() };
        let b = View::of_pairs(self.keys, [self.blocks * BLOCK, CHUNK]);
        let panels = cols.start / LANES..cols.end.div_ceil(LANES);
        self.product.product(a, b, panels, &mut self.s[vectors.start * CHUNK..], CHUNK, Beta::Zero);
    }

    #[inline(always)]
    fn scores_of(&self, i: usize) -> &[f32] {
        &self.s[i * CHUNK..(i + 1) * CHUNK]
    }

    #[inline(always)]
    fn set_weights<L: Lanes>(&mut self, l: L, i: usize, weights: [L::F; 2], _: &mut MinExponent<L>) {
        let mut values = Pairs([bf16::ZERO; BLOCK]);
        for (p, block) in weights.into_iter().zip(&mut self.p[i * SLOT_BLOCKS..(i + 1) * SLOT_BLOCKS]) {
            l.store_bf16(&mut values.0, p);
            *block = P::block(&values);
        }
    }

    #[inline(always)]
    fn read_values<L: Lanes>(&mut self, l: L, from: &ChunkSource<'a, K>, _: &mut MinExponent<L>) {
        pack_values::<L, E, K, P>(l, self.blocks, from, self.rows, self.values);
    }

    #[inline(always)]
    fn outputs(&mut self, vectors: Range<usize>, depth: Range<usize>, out: &mut [f32], _: bool) {
        let slot_blocks = depth.start / BLOCK..depth.end.div_ceil(BLOCK);
        let blocks = &self.p[vectors.start * SLOT_BLOCKS + slot_blocks.start..];
        let a = Rows { blocks, step: SLOT_BLOCKS, len: vectors.len() };
        let b = View::of_pairs(self.values, [CHUNK, self.blocks * LANES])
            .depths(slot_blocks.start * BLOCK..slot_blocks.end * BLOCK);
        self.product.product(a, b, 0..self.blocks, out, self.blocks * LANES, Beta::Zero);
    }
}

/// Packs the rows of a chunk's visible slots, transposed: panels of 32 slots, `[2][blocks][2][16]`. `rows`: working
/// memory, `[blocks][16]`.
#[inline(always)]
pub(super) fn pack_keys<L: Lanes, E: Number, K: KvElement<E>, P: PairProduct>(
    l: L,
    blocks: usize,
    from: &ChunkSource<'_, K>,
    rows: &mut [Pairs],
    packed: &mut [Pairs],
) {
    let next = from.visible.start;
    let mut packer = Packer { blocks, rows, packed, next, group: PhantomData::<Keys<P>> };
    from.view.read::<L, E, K>(l, from.x, from.positions(), &mut packer);
    packer.skip(l, from.visible.end.next_multiple_of(TILE));
}

/// Packs the rows of a chunk's visible slots: panels of 32 elements, `[blocks][2][2][16]`. Other slots of a block of 32
/// are rows of zeros. `rows`: working memory, `[blocks][P::GROUP]`.
#[inline(always)]
pub(super) fn pack_values<L: Lanes, E: Number, K: KvElement<E>, P: PairProduct>(
    l: L,
    blocks: usize,
    from: &ChunkSource<'_, K>,
    rows: &mut [Pairs],
    packed: &mut [Pairs],
) {
    let next = from.visible.start / BLOCK * BLOCK;
    let mut packer = Packer { blocks, rows, packed, next, group: PhantomData::<Values<P>> };
    packer.skip(l, from.visible.start);
    from.view.read::<L, E, K>(l, from.x, from.positions(), &mut packer);
    packer.skip(l, from.visible.end.next_multiple_of(BLOCK));
}

/// How a group of rows of consecutive slots is packed.
pub(super) trait Group {
    /// Rows of a group.
    const ROWS: usize;

    /// Packs a group whose last row is that of slot `last`. `rows`: `[blocks][ROWS]`.
    fn pack<L: Lanes>(l: L, rows: &[Pairs], last: usize, packed: &mut [Pairs]);
}

/// Reads rows and packs each group of them.
struct Packer<'b, G> {
    blocks: usize,
    rows: &'b mut [Pairs],
    packed: &'b mut [Pairs],
    /// The slot of the next row.
    next: usize,
    group: PhantomData<G>,
}

impl<L: Lanes, E: Number, K: KvElement<E>, G: Group> Reader<L, E, K> for Packer<'_, G> {
    #[inline(always)]
    fn row(&mut self, l: L, x: &[K]) {
        K::bf16_row(l, x, self.rows[self.next % G::ROWS..].iter_mut().step_by(G::ROWS));
        self.advance(l);
    }
}

impl<G: Group> Packer<'_, G> {
    #[inline(always)]
    fn advance<L: Lanes>(&mut self, l: L) {
        self.next += 1;
        if self.next.is_multiple_of(G::ROWS) {
            G::pack(l, &self.rows[..self.blocks * G::ROWS], self.next - 1, self.packed);
        }
    }

    /// Takes rows of zeros up to the slot `end`.
    #[inline(always)]
    fn skip<L: Lanes>(&mut self, l: L, end: usize) {
        while self.next < end {
            for row in self.rows[self.next % G::ROWS..].iter_mut().step_by(G::ROWS).take(self.blocks) {
                *row = Pairs([bf16::ZERO; BLOCK]);
            }
            self.advance(l);
        }
    }
}

/// Keys are transposed, 16 slots at a time.
struct Keys<P>(PhantomData<P>);

impl<P: PairProduct> Group for Keys<P> {
    const ROWS: usize = TILE;

    #[inline(always)]
    fn pack<L: Lanes>(l: L, rows: &[Pairs], last: usize, packed: &mut [Pairs]) {
        let (rows, tile) = (rows.as_chunks().0, last / TILE);
        let packed = &mut packed[tile / 2 * rows.len() * BLOCK_ROWS + tile % 2 * TILE..];
        for (rows, packed) in rows.iter().zip(packed.chunks_mut(BLOCK_ROWS)) {
            let packed = &mut packed[..TILE];
            transpose_pairs(l, rows, packed);
            P::order_tile(packed);
        }
    }
}

/// Values of a few slots become the pairs of a product.
pub(super) struct Values<P>(PhantomData<P>);

impl<P: PairProduct> Group for Values<P> {
    const ROWS: usize = P::GROUP;

    #[inline(always)]
    fn pack<L: Lanes>(_: L, rows: &[Pairs], last: usize, packed: &mut [Pairs]) {
        let packed = &mut packed[last / BLOCK * BLOCK_ROWS + last % BLOCK / P::GROUP * (P::GROUP / 2)..];
        let panels = packed.chunks_mut(SLOT_BLOCKS * BLOCK_ROWS);
        for (rows, panel) in rows.chunks_exact(P::GROUP).zip(panels) {
            for at in [0, TILE] {
                P::pair_rows(rows, at, &mut panel[at..]);
            }
        }
    }
}
