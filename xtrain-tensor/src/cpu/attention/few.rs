//! Attention forward for a few rows of one sequence, with AMX: a decoding step, or the chunks that follow those that the
//! sequence shares with others. One work item computes several kv heads, all if there are enough sequences, so that
//! masks, slots and tile registers are set up once.
//!
//! The scores are computed as `k q^T`, with the keys where they are. Values are paired on the way to the product: the
//! even columns of a panel in its first tile, the odd ones in its second.
//!
//! There is no closure in `array::map` here: it would not be inlined into code for AVX-512 (docs/bench/training.md).
use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::blocks::Block;
use super::gather::HeadView;
use super::kv_element::KvElement;
use super::number::Number;
use super::operands::ChunkSource;
use super::paired::SLOT_BLOCKS;
use super::rows::{CHUNK, union, within};
use super::scratch;
use super::state::{Shared, State, factors};
use crate::cpu::gemm_bf16::{BLOCK, FewRows, Pairs, TILE, TileRows, flat};
use crate::cpu::lanes::{Kernel, LANES, Lanes, with_avx512};
use crate::cpu::scratch::Buffer;
use crate::faults::{self, Fault};

/// Rows of a panel of values: two tiles for each block of slots.
const PANEL: usize = SLOT_BLOCKS * 2 * TILE;

/// Elements of the heads whose values are paired in one pass: 32 KiB of a chunk, which stay in the L1 cache.
const PASS: usize = 256;

const ZEROS: Pairs = Pairs([bf16::ZERO; BLOCK]);

/// The division of the rows of some sequences, few each, into work items.
pub(super) struct Division<'a, E, K> {
    shared: &'a Shared<'a, E, K>,
    singles: &'a [Block],
    /// Maximum keys of a work item, times its kv heads.
    share: usize,
}

impl<'a, E: Number, K: KvElement<E>> Division<'a, E, K> {
    /// `parts`: the work is divided into about this many items, so that every thread has some.
    pub(super) fn new(
        shared: &'a Shared<'a, E, K>,
        singles: &'a [Block],
        parts: usize,
    ) -> Division<'a, E, K> {
        let mut division = Division { shared, singles, share: 0 };
        division.share =
            singles.iter().map(|&block| division.keys(block)).sum::<usize>() * shared.heads.nkv / parts;
        division
    }

    /// Runs the work item whose first kv head is the head `i % nkv` of block `i / nkv`, if there is one.
    pub(super) fn run(&self, i: usize) {
        let nkv = self.shared.heads.nkv;
        let (block, kv) = (self.singles[i / nkv], i % nkv);
        let heads = (self.share / self.keys(block).max(1)).clamp(1, nkv);
        if kv % heads == 0 {
            let next = self.singles.get(i / nkv + 1).filter(|_| heads == nkv);
            Few {
                shared: self.shared,
                rows: block[0]..block[1],
                kv_heads: kv..nkv.min(kv + heads),
                next: next.map(|[start, _]| self.shared.mask.seq[*start]),
            }
            .run();
        }
    }

    /// The visible keys of a block from its cut on.
    fn keys(&self, block: Block) -> usize {
        let from = self.shared.cuts[block[0]].chunk * CHUNK;
        let keys = |row| self.shared.mask.keys(row);
        (block[0]..block[1]).map(|row| keys(row).end.saturating_sub(keys(row).start.max(from))).sum()
    }
}

/// The kv heads `kv_heads` of the rows `rows` of one sequence from their cut on, with at most 16 query vectors for each
/// head. The methods count kv heads from the first of these.
struct Few<'a, E, K> {
    shared: &'a Shared<'a, E, K>,
    rows: Range<usize>,
    kv_heads: Range<usize>,
    /// The sequence whose keys and values are prefetched.
    next: Option<u32>,
}

impl<'a, E: Number, K: KvElement<E>> Few<'a, E, K> {
    fn run(&self) {
        let (nkv, few, width) = (self.kv_heads.len(), self.vectors(), self.shared.width());
        let (n, blocks) = (nkv * few, width / BLOCK);
        let (all, one) = (n * width, n.next_multiple_of(LANES));
        let pass = (PASS / width).clamp(1, nkv);
        let len = (nkv * TILE + (CHUNK + PANEL) * pass) * blocks + n * SLOT_BLOCKS;
        let mut memory = Buffer::<Pairs>::new(len);
        let mut rest = &mut memory[..];
        let mut pairs = |len| rest.split_off_mut(..len).expect("the total was reserved");
        let (q, rows) = (pairs(nkv * TILE * blocks), pairs(CHUNK * pass * blocks));
        let values = pairs(PANEL * pass * blocks);
        let p = pairs(n * SLOT_BLOCKS);
        let lens = [few * width, all, one, one, one, one, one, one, n * CHUNK, CHUNK * TILE];
        scratch::with(lens, |[oc, o, m, l, mc, lc, a, b, s, s_t]| {
            let state = State { oc, o, m, l, mc, lc, a, b };
            let s_t = s_t.as_chunks_mut().0;
            let tiles = FewRows::new(few);
            with_avx512(Work { item: self, tiles, blocks, pass, q, rows, values, p, s, s_t, state });
        });
    }

    /// The chunk of the cut, which may be before the first visible key.
    fn first_chunk(&self) -> usize {
        let cut = self.shared.cuts[self.rows.start];
        cut.chunk + usize::from(cut.continues() && faults::on(Fault::FirstOwnChunkSkipped))
    }

    /// Query vectors of a kv head.
    #[inline(always)]
    fn vectors(&self) -> usize {
        self.rows.len() * self.shared.group()
    }

    /// The row of query vector `i` of a kv head, and its head.
    #[inline(always)]
    fn row_and_head(&self, kv: usize, i: usize) -> (usize, usize) {
        let group = self.shared.group();
        (self.rows.start + i / group, (self.kv_heads.start + kv) * group + i % group)
    }

    /// The keys or values of a kv head.
    #[inline(always)]
    fn view(&self, kv: usize) -> HeadView<'a> {
        let Shared { heads, mask, .. } = self.shared;
        let kv = self.kv_heads.start + kv;
        let next = self.next.map(|seq| (seq, kv));
        HeadView { slots: mask.slots, seq: mask.seq[self.rows.start], nkv: heads.nkv, kv, hd: heads.hd, next }
    }
}

/// A work item and its memory. Vectors are padded with zeros to `blocks` blocks of 32, and numbered by kv head first.
struct Work<'a, 'b, E, K> {
    item: &'b Few<'a, E, K>,
    tiles: FewRows,
    blocks: usize,
    /// Kv heads whose values are paired in one pass.
    pass: usize,
    /// Pair r of block b of all query vectors of a kv head: `[nkv][blocks][16]`.
    q: &'b mut [Pairs],
    /// Copied keys of one kv head: `[64][blocks]`; then copied values of the heads of a pass: `[64][pass][blocks]`.
    rows: &'b mut [Pairs],
    /// Panels of 32 elements of the kv heads of a pass: `[pass][blocks][2][2][16]`.
    values: &'b mut [Pairs],
    /// `[vectors][2]`.
    p: &'b mut [Pairs],
    /// `[vectors][64]`; of one kv head, transposed: `[64][16]`.
    s: &'b mut [f32],
    s_t: &'b mut [[f32; TILE]],
    /// `oc`: of one kv head, with the columns of each panel as in `values`.
    state: State<'b>,
}

impl<E: Number, K: KvElement<E>> Kernel for Work<'_, '_, E, K> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let Shared { heads, mask, .. } = *self.item.shared;
        let (few, nkv) = (self.item.vectors(), self.item.kv_heads.len());
        let n = nkv * few;
        self.state.m.fill(f32::NEG_INFINITY);
        self.state.l.fill(0.0);
        for v in 0..n {
            let (row, head) = self.item.row_and_head(v / few, v % few);
            self.item.shared.resume(&mut self.state, v, row, head);
        }
        self.set_queries(l);
        let all = self.item.rows.clone().fold(0..0, |all, row| union(all, mask.keys(row)));
        let first = (all.start / CHUNK).max(self.item.first_chunk());
        for c in first..all.end.div_ceil(CHUNK) {
            let visible = within(&all, c);
            for kv in 0..nkv {
                self.scores(l, kv, c, &visible);
            }
            for v in 0..n {
                let row = self.item.row_and_head(v / few, v % few).0;
                let scores = &self.s[v * CHUNK..(v + 1) * CHUNK];
                let p = self.state.weigh(l, v, scores, &within(&mask.keys(row), c), heads.scale());
                for (p, block) in p.into_iter().zip(&mut self.p[v * SLOT_BLOCKS..]) {
                    l.store_bf16(&mut block.0, p);
                }
            }
            factors(l, &mut self.state);
            for first in (0..nkv).step_by(self.pass) {
                let pass = first..nkv.min(first + self.pass);
                if first == 0 || !faults::on(Fault::NextHeadsNotPaired) {
                    self.pair_values(l, pass.clone(), c, &visible);
                }
                for kv in pass {
                    self.outputs(l, kv, &visible);
                }
            }
        }
        self.state.finish_sums(l);
        for v in 0..n {
            let (row, head) = self.item.row_and_head(v / few, v % few);
            self.item.shared.write(l, &self.state, v, row, head);
        }
    }
}

impl<E: Number, K: KvElement<E>> Work<'_, '_, E, K> {
    #[inline(always)]
    fn set_queries<L: Lanes>(&mut self, l: L) {
        let (few, blocks) = (self.item.vectors(), self.blocks);
        for (kv, q) in self.q.chunks_exact_mut(TILE * blocks).enumerate() {
            for i in 0..few {
                let (row, head) = self.item.row_and_head(kv, i);
                let x = &self.item.shared.q[self.item.shared.heads.q(row, head)];
                <E as KvElement<E>>::bf16_row(l, x, self.rows.iter_mut().take(blocks));
                for (q, values) in q.chunks_exact_mut(TILE).zip(&self.rows[..blocks]) {
                    for (q, pair) in q.iter_mut().zip(values.0.as_chunks::<2>().0) {
                        q.0.as_chunks_mut::<2>().0[i] = *pair;
                    }
                }
            }
        }
    }

    /// Computes the products of the query vectors of a kv head with the keys of the slots `visible` of chunk `c`.
    #[inline(always)]
    fn scores<L: Lanes>(&mut self, l: L, kv: usize, c: usize, visible: &Range<usize>) {
        let (few, blocks) = (self.item.vectors(), self.blocks);
        let (view, x) = (self.item.view(kv), self.item.shared.keys_values[0]);
        let from = ChunkSource { view, x, c, visible: visible.clone() };
        let q = &self.q[kv * TILE * blocks..(kv + 1) * TILE * blocks];
        for block in visible.start / BLOCK..visible.end.div_ceil(BLOCK) {
            // keys that are not visible give scores that are not used
            let mut in_place = [None; 2];
            for (slot, rows) in (block * BLOCK..).step_by(TILE).zip(&mut in_place) {
                if view.hd == blocks * BLOCK {
                    *rows = view.tile_rows::<E, K>(x, c * CHUNK + slot);
                }
                if rows.is_none() {
                    copy::<L, E, K>(l, &from, slot..slot + TILE, self.rows, blocks);
                }
            }
            let copied = |slot: usize| TileRows {
                elements: &flat(self.rows)[slot * blocks * BLOCK..],
                step: blocks * BLOCK,
            };
            let first = in_place[0].unwrap_or_else(|| copied(block * BLOCK));
            let mut second = in_place[1].unwrap_or_else(|| copied(block * BLOCK + TILE));
            if faults::on(Fault::KeysOfFirstTile) {
                second = first;
            }
            self.tiles.times_vectors([first, second], q, &mut self.s_t[block * BLOCK..]);
        }
        let s = &mut self.s[kv * few * CHUNK..(kv + 1) * few * CHUNK];
        // SAFETY: `with_avx512` has detected AVX-512F.
        unsafe { transpose(self.s_t, visible, s) };
    }

    /// Pairs the values of the kv heads `pass` at the slots `visible` of chunk `c`; other slots of a block of 32 are
    /// zeros. Prefetches a part of the keys and values of the next sequence: the share of these heads in its rows.
    #[inline(always)]
    fn pair_values<L: Lanes>(&mut self, l: L, pass: Range<usize>, c: usize, visible: &Range<usize>) {
        let blocks = pass.len() * self.blocks;
        let (view, [keys, values]) = (self.item.view(pass.start), self.item.shared.keys_values);
        let in_place = K::in_place(values).filter(|_| view.hd == self.blocks * BLOCK);
        let part = visible.len().div_ceil(view.nkv);
        let from = c * CHUNK + visible.start + view.kv * part;
        let next = from..(from + pass.len() * part).min(c * CHUNK + visible.end);
        let mut prefetch_keys = view.prefetch_all_heads::<E, K>(keys, next.clone());
        let mut prefetch_values = view.prefetch_all_heads::<E, K>(values, next);
        let slot_blocks = visible.start / BLOCK..visible.end.div_ceil(BLOCK);
        let lines = prefetch_keys.share(slot_blocks.len() * TILE);
        for block in slot_blocks {
            let first = block * BLOCK;
            let slots = first.max(visible.start)..(first + BLOCK).min(visible.end);
            let mut rows: [&[bf16]; BLOCK] = [&[]; BLOCK];
            match in_place {
                Some(x) => {
                    let rows = &mut rows[slots.start - first..slots.end - first];
                    view.rows_of(x, pass.len(), c * CHUNK + slots.start, rows);
                }
                None => {
                    let rows_of_slots = self.rows[first * blocks..].chunks_exact_mut(blocks);
                    for (slot, row) in
                        (first..first + BLOCK).zip(rows_of_slots).filter(|(slot, _)| slots.contains(slot))
                    {
                        for (kv, row) in pass.clone().zip(row.chunks_exact_mut(self.blocks)) {
                            let x = self.item.view(kv).row::<E, K>(values, c * CHUNK + slot);
                            K::bf16_row(l, x, row.iter_mut());
                        }
                    }
                    let copied = flat(self.rows).chunks_exact(blocks * BLOCK);
                    for ((i, row), copied) in rows.iter_mut().enumerate().zip(copied.skip(first)) {
                        if slots.contains(&(first + i)) {
                            *row = copied;
                        }
                    }
                }
            }
            for (r, [even, odd]) in rows.as_chunks::<2>().0.iter().enumerate() {
                prefetch_keys.issue(l, lines);
                prefetch_values.issue(l, lines);
                let [even, odd] =
                    if faults::on(Fault::PairedSlotsExchanged) { [odd, even] } else { [even, odd] };
                // SAFETY: as above.
                unsafe { pair_columns(even, odd, blocks, &mut self.values[block * 2 * TILE + r..]) };
            }
        }
    }

    /// Computes the outputs of a chunk for the query vectors of a kv head and merges them.
    #[inline(always)]
    fn outputs<L: Lanes>(&mut self, l: L, kv: usize, visible: &Range<usize>) {
        let (few, width) = (self.item.vectors(), self.blocks * LANES);
        let slot_blocks = visible.start / BLOCK..visible.end.div_ceil(BLOCK);
        let weights = &self.p[kv * few * SLOT_BLOCKS + slot_blocks.start..];
        let values = &self.values[kv % self.pass * PANEL * self.blocks..][..PANEL * self.blocks];
        for (b, panel) in values.chunks_exact(PANEL).enumerate() {
            let panel = &panel[slot_blocks.start * 2 * TILE..slot_blocks.end * 2 * TILE];
            self.tiles.times_panel(weights, SLOT_BLOCKS, panel, &mut self.state.oc[b * LANES..], width);
        }
        for i in 0..few {
            let v = kv * few + i;
            let (a, b) = (Lanes::splat(l, self.state.a[v]), Lanes::splat(l, self.state.b[v]));
            let (of_kv, of_all) = (i * width..(i + 1) * width, v * width..(v + 1) * width);
            let panels = self.state.o[of_all].as_chunks_mut::<LANES>().0;
            for (o, oc) in panels.iter_mut().zip(self.state.oc[of_kv].as_chunks_mut::<LANES>().0) {
                if !faults::on(Fault::PairedColumnsNotRestored) {
                    // SAFETY: as above.
                    unsafe { zip_columns(oc) };
                }
                let merged = Lanes::fma(l, l.load(o), a, Lanes::mul(l, l.load(oc), b));
                l.store(o, merged);
            }
        }
    }
}

/// Copies the visible ones of the slots `slots` to their rows of `blocks` blocks; the others become zeros.
#[inline(always)]
fn copy<L: Lanes, E: Number, K: KvElement<E>>(
    l: L,
    from: &ChunkSource<'_, K>,
    slots: Range<usize>,
    rows: &mut [Pairs],
    blocks: usize,
) {
    let rows = &mut rows[slots.start * blocks..slots.end * blocks];
    for (slot, row) in slots.zip(rows.chunks_exact_mut(blocks)) {
        match from.visible.contains(&slot) {
            true => K::bf16_row(l, from.view.row::<E, K>(from.x, from.c * CHUNK + slot), row.iter_mut()),
            false => row.fill(ZEROS),
        }
    }
}

/// Pairs two rows of `blocks` blocks: the even columns of block b at `panels[b]`, the odd ones a tile later. An empty row
/// is one of zeros.
#[target_feature(enable = "avx512f")]
#[inline]
fn pair_columns(even: &[bf16], odd: &[bf16], blocks: usize, panels: &mut [Pairs]) {
    assert!(
        [even, odd].iter().all(|row| row.is_empty() || row.len() >= blocks * BLOCK),
        "rows of all blocks"
    );
    assert!(panels.len() > (blocks - 1) * PANEL + TILE, "panels of all blocks");
    let low = _mm512_set1_epi32(0xffff);
    for b in 0..blocks {
        // SAFETY: 32 elements are 64 bytes, of which every bit pattern is valid; lengths were checked.
        unsafe {
            let (mut x, mut y) = (_mm512_setzero_si512(), _mm512_setzero_si512());
            if !even.is_empty() {
                x = _mm512_loadu_si512(even.as_ptr().add(b * BLOCK).cast());
            }
            if !odd.is_empty() {
                y = _mm512_loadu_si512(odd.as_ptr().add(b * BLOCK).cast());
            }
            let to = panels.as_mut_ptr().add(b * PANEL);
            let first = _mm512_or_si512(_mm512_and_si512(x, low), _mm512_slli_epi32::<16>(y));
            let second = _mm512_or_si512(_mm512_srli_epi32::<16>(x), _mm512_andnot_si512(low, y));
            _mm512_store_si512(to.cast(), first);
            _mm512_store_si512(to.add(TILE).cast(), second);
        }
    }
}

/// Restores the order of the columns of a panel.
#[target_feature(enable = "avx512f")]
#[inline]
fn zip_columns(x: &mut [f32; LANES]) {
    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    // SAFETY: 32 elements.
    unsafe {
        let (even, odd) = (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(TILE)));
        _mm512_storeu_ps(x.as_mut_ptr(), _mm512_permutex2var_ps(even, low, odd));
        _mm512_storeu_ps(x.as_mut_ptr().add(TILE), _mm512_permutex2var_ps(even, high, odd));
    }
}

/// The columns of the slots `visible`, rounded to whole groups of 16, as rows of 64.
#[target_feature(enable = "avx512f")]
#[inline]
fn transpose(s_t: &[[f32; TILE]], visible: &Range<usize>, s: &mut [f32]) {
    let index =
        _mm512_slli_epi32::<4>(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    for (i, row) in s.chunks_exact_mut(CHUNK).enumerate().take(TILE) {
        for slot in (visible.start / TILE * TILE..visible.end).step_by(TILE) {
            let (from, to) = (&s_t[slot..slot + TILE], &mut row[slot..slot + TILE]);
            // SAFETY: column i of 16 rows of 16 elements, and 16 elements of a row.
            unsafe {
                let column = _mm512_i32gather_ps::<4>(index, from.as_ptr().cast::<f32>().add(i));
                _mm512_storeu_ps(to.as_mut_ptr(), column);
            }
        }
    }
}
