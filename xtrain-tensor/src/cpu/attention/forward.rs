//! Attention forward: blocks of rows times their keys, in chunks of 64 keys.
//!
//! The rows of a block belong to one sequence, or to sequences whose first slots are the same, such as the
//! completions of one prompt. A chunk that they share is read once for all of them.
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::few::{Few, are_few};
use super::gather::{HeadView, Prefetcher};
use super::kv_element::KvElement;
use super::number::Number;
use super::operands::{ChunkSource, Operands};
#[cfg(target_arch = "x86_64")]
use super::paired::PairedMemory;
use super::rows::{CHUNK, SERIAL, union, within};
use super::scratch;
use super::state::{Shared, State, factors};
use super::widened::Widened;
use crate::cpu::gemm_bf16::{MinExponent, NO_EXPONENT, on_lattice};
#[cfg(target_arch = "x86_64")]
use crate::cpu::gemm_bf16::{PairDot, PairProduct, TileDot};
#[cfg(target_arch = "x86_64")]
use crate::cpu::lanes::with_avx512;
use crate::cpu::lanes::{Kernel, LANES, Lanes, dispatch};
use crate::cpu::scratch::{Buffer, scratch};
use crate::cpu::{Disjoint, Simd};
use crate::device::Cpu;
use crate::operands::{AttnMask, Heads};

/// Maximum query vectors (rows times heads of the group) per block.
const BLOCK: usize = 256;

/// The least number of query vectors for which packing a chunk in pairs for `vdpbf16ps` pays.
#[cfg(target_arch = "x86_64")]
const MIN_PAIRED: usize = 8;

/// `y` and `L` of [`crate::ops::attention`].
pub(crate) fn attention<E: Number>(
    cpu: &Cpu,
    [q, k, v]: [&[E]; 3],
    heads: Heads,
    mask: &AttnMask<'_>,
) -> (Vec<E>, Vec<f32>) {
    attention_over(cpu, q, [k, v], heads, mask)
}

/// [`attention`] over keys and values that are stored as `K`.
pub(crate) fn attention_over<E: Number, K: KvElement<E>>(
    cpu: &Cpu,
    q: &[E],
    keys_values: [&[K]; 2],
    heads: Heads,
    mask: &AttnMask<'_>,
) -> (Vec<E>, Vec<f32>) {
    let group = heads.nh / heads.nkv;
    let tiles = cpu.simd == Simd::Amx && E::PAIRED;
    let blocks = blocks(mask, (BLOCK / group).max(1), mask.rows().div_ceil(cpu.pool.threads()), tiles);
    let keys = |rows: Range<usize>| rows.map(|n| mask.keys(n).len()).sum::<usize>();
    let work = keys(0..mask.rows());
    let serial = cpu.pool.threads() == 1 || work * heads.nh * heads.hd < SERIAL;
    let mut y = cpu.recycler.acquire(q.len());
    let mut lse = cpu.recycler.acquire(mask.rows() * heads.nh);
    let shared = Shared {
        q,
        keys_values,
        heads,
        mask,
        simd: cpu.simd,
        y_out: Disjoint::new(&mut y),
        lse_out: Disjoint::new(&mut lse),
    };
    let shared = &shared;
    let item = |i: usize| {
        let block_and_head = |i: usize| Some((*blocks.get(i / heads.nkv)?, i % heads.nkv));
        let Some(([start, end], kv)) = block_and_head(i) else { return };
        let block = start..end;
        #[cfg(target_arch = "x86_64")]
        if tiles && are_few(shared, &block) {
            // at most half of a thread's share of the work
            let together = match serial {
                true => heads.nkv,
                false => work * heads.nkv / (2 * cpu.pool.threads() * keys(block.clone())),
            };
            let together = together.clamp(1, heads.nkv);
            if kv % together == 0 {
                let kv_heads = kv..heads.nkv.min(kv + together);
                let next = blocks.get(i / heads.nkv + 1).filter(|_| together == heads.nkv);
                Few { shared, rows: block, kv_heads, next: next.map(|[start, _]| mask.seq[*start]) }.run();
            }
            return;
        }
        let next = block_and_head(i + 1).map(|([start, _], kv)| (mask.seq[start], kv));
        Item { shared, block, kv, next }.run();
    };
    let n = blocks.len() * heads.nkv;
    match serial {
        true => (0..n).for_each(item),
        false => cpu.pool.run(n, item),
    }
    (y, lse)
}

/// Groups consecutive rows whose sequences start with the same slots into blocks of at most `max_rows` rows. A block
/// with `join_below` rows or more is not joined by another sequence, so that every thread has work. `mostly`: sequences
/// are only joined if most of their chunks are the same, because a single row is computed faster than a part of a block.
fn blocks(mask: &AttnMask<'_>, max_rows: usize, join_below: usize, mostly: bool) -> Buffer<Block> {
    let (mut blocks, mut len) = (Buffer::<Block>::new(mask.rows()), 0);
    for n in 0..mask.rows() {
        let joins = |[start, end]: Block| {
            end - start < max_rows
                && (mask.seq[n] == mask.seq[n - 1]
                    || end - start < join_below && share_chunks(mask, n - 1, n, mostly))
        };
        match blocks[..len].last_mut() {
            Some(block) if joins(*block) => block[1] = n + 1,
            _ => {
                blocks[len] = [n, n + 1];
                len += 1;
            }
        }
    }
    blocks.truncate(len);
    blocks
}

/// The first row of a block and the one after its last.
type Block = [usize; 2];
scratch!(Block, [0; 2]);

/// Whether the first chunk visible to either of two rows is in the same slots for both. `mostly`: the first four fifths
/// of the visible chunks, rounded up.
fn share_chunks(mask: &AttnMask<'_>, a: usize, b: usize, mostly: bool) -> bool {
    let all = union(mask.keys(a), mask.keys(b));
    let start = all.start / CHUNK * CHUNK;
    let chunks = if mostly { ((all.end - start).div_ceil(CHUNK) * 4).div_ceil(5) } else { 1 };
    mask.slots.same(mask.seq[a], mask.seq[b], start..start + chunks * CHUNK)
}

/// A work item: one block of rows and one kv head. Query vectors are numbered by row, then by head of the group.
struct Item<'a, E, K> {
    shared: &'a Shared<'a, E, K>,
    block: Range<usize>,
    kv: usize,
    /// The sequence and the kv head of the next work item.
    next: Option<(u32, usize)>,
}

/// Query vectors of a block whose visible keys of chunk `c` are in the same slots.
struct Part {
    c: usize,
    vectors: Range<usize>,
}

/// A work item and its memory: the kernel that is compiled for each instruction set.
struct Work<'a, 'b, E, K, O> {
    item: &'b Item<'a, E, K>,
    state: State<'b>,
    operands: O,
}

impl<'a, E: Number, K: KvElement<E>, O: Operands<'a, E, K>> Kernel for Work<'a, '_, E, K, O> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        self.item.walk(l, &mut self.state, &mut self.operands);
    }
}

impl<'a, E: Number, K: KvElement<E>> Item<'a, E, K> {
    fn run(&self) {
        let (n, width, hd) = (self.vectors(), self.shared.width(), self.shared.heads.hd);
        let (all, one, scores, chunk) = (n * width, n.next_multiple_of(LANES), n * CHUNK, CHUNK * width);
        #[cfg(target_arch = "x86_64")]
        match self.shared.simd {
            Simd::Avx512Bf16 if E::PAIRED && n >= MIN_PAIRED => return self.run_paired(PairDot::new()),
            Simd::Amx if E::PAIRED => return self.run_paired(TileDot::new()),
            _ => {}
        }
        let lens = [all, scores, all, all, one, one, one, one, one, one, chunk, chunk, chunk];
        scratch::with(lens, |[q, s, oc, o, m, l, mc, lc, a, b, k, kt, v]| {
            let state = State { oc, o, m, l, mc, lc, a, b };
            let operands = Widened { simd: self.shared.simd, hd, width, q, s, k, kt, v, in_place: None };
            dispatch(self.shared.simd, Work { item: self, state, operands });
        });
    }

    #[cfg(target_arch = "x86_64")]
    fn run_paired<P: PairProduct>(&self, product: P) {
        let (n, width) = (self.vectors(), self.shared.width());
        let (all, one) = (n * width, n.next_multiple_of(LANES));
        let mut memory = PairedMemory::<P>::new(n, width);
        let lens = [all, all, one, one, one, one, one, one, n * CHUNK];
        scratch::with(lens, |[oc, o, m, l, mc, lc, a, b, s]| {
            let state = State { oc, o, m, l, mc, lc, a, b };
            with_avx512(Work { item: self, state, operands: memory.operands(product, s) });
        });
    }

    #[inline(always)]
    fn vectors(&self) -> usize {
        self.block.len() * self.shared.group()
    }

    #[inline(always)]
    fn row_and_head(&self, i: usize) -> (usize, usize) {
        (self.block.start + i / self.shared.group(), self.kv * self.shared.group() + i % self.shared.group())
    }

    /// The longest run of rows from `first` on whose visible keys of chunk `c` are in the same slots.
    #[inline(always)]
    fn part(&self, first: usize, c: usize) -> Range<usize> {
        let mask = self.shared.mask;
        let mut visible = within(&mask.keys(first), c);
        let mut end = first + 1;
        while end < self.block.end {
            let next = within(&mask.keys(end), c);
            let apart = next.start.max(visible.start) > next.end.min(visible.end);
            if apart && !visible.is_empty() && !next.is_empty() {
                break; // the slots in between belong to neither sequence and hold unspecified values
            }
            let both = union(visible, next);
            let positions = c * CHUNK + both.start..c * CHUNK + both.end;
            if !mask.slots.same(mask.seq[first], mask.seq[end], positions) {
                break;
            }
            (visible, end) = (both, end + 1);
        }
        first..end
    }

    /// The keys and values of a part's sequence. Those of the next part, or of the next work item, are prefetched.
    #[inline(always)]
    fn head_view(&self, part: &Range<usize>) -> HeadView<'a> {
        let next_part = (part.end < self.block.end).then(|| (self.shared.mask.seq[part.end], self.kv));
        HeadView {
            slots: self.shared.mask.slots,
            seq: self.shared.mask.seq[part.start],
            nkv: self.shared.heads.nkv,
            kv: self.kv,
            hd: self.shared.heads.hd,
            next: next_part.or(self.next),
        }
    }

    #[inline(always)]
    fn vectors_of(&self, rows: &Range<usize>) -> Range<usize> {
        let at = |row: usize| (row - self.block.start) * self.shared.group();
        at(rows.start)..at(rows.end)
    }

    /// The slots of chunk `c` visible to any of the query vectors `range`.
    #[inline(always)]
    fn visible(&self, range: Range<usize>, c: usize) -> Range<usize> {
        let rows = self.row_and_head(range.start).0..=self.row_and_head(range.end - 1).0;
        rows.fold(0..0, |visible, n| union(visible, within(&self.shared.mask.keys(n), c)))
    }

    #[inline(always)]
    fn walk<L: Lanes>(&self, l: L, st: &mut State<'_>, operands: &mut impl Operands<'a, E, K>) {
        let (n, width, [keys, values]) = (self.vectors(), self.shared.width(), self.shared.keys_values);
        let mut min_q = MinExponent::new(l);
        for i in 0..n {
            let (row, head) = self.row_and_head(i);
            operands.set_query(l, i, &self.shared.q[self.shared.heads.q(row, head)], &mut min_q);
        }
        let min_q = min_q.field(l);
        st.m.fill(f32::NEG_INFINITY);
        st.l.fill(0.0);
        st.o[..n * width].fill(0.0);

        let all = self.block.clone().fold(0..0, |all, n| union(all, self.shared.mask.keys(n)));
        for c in all.start / CHUNK..all.end.div_ceil(CHUNK) {
            if self.visible(0..n, c).is_empty() {
                continue;
            }
            let mut min_p = NO_EXPONENT;
            for part in self.parts(c) {
                let (mut min_k, visible) = (MinExponent::new(l), self.visible(self.vectors_of(&part), c));
                let view = self.head_view(&part);
                let mut prefetcher = view.prefetcher::<E, K>(values, c, &visible, halves(&visible).0);
                if !visible.is_empty() {
                    let mut prefetcher = view.prefetcher::<E, K>(keys, c, &visible, visible.clone());
                    let from = ChunkSource { view, x: keys, c, visible };
                    operands.read_keys(l, &from, &mut prefetcher, &mut min_k);
                }
                let no_flush = on_lattice(min_q, min_k.field(l));
                let part = Part { c, vectors: self.vectors_of(&part) };
                min_p = min_p.min(self.weights(l, st, part, operands, no_flush, &mut prefetcher));
            }
            factors(l, st);
            for part in self.parts(c) {
                let (mut min_v, visible) = (MinExponent::new(l), self.visible(self.vectors_of(&part), c));
                if !visible.is_empty() {
                    let view = self.head_view(&part);
                    let mut prefetcher = view.prefetcher::<E, K>(values, c, &visible, halves(&visible).1);
                    let from = ChunkSource { view, x: values, c, visible };
                    operands.read_values(l, &from, &mut min_v);
                    let no_flush = on_lattice(min_p, min_v.field(l));
                    let part = Part { c, vectors: self.vectors_of(&part) };
                    self.merge(l, st, part, operands, no_flush, &mut prefetcher);
                }
            }
        }
        self.finish(l, st);
    }

    /// Splits the block at chunk `c` into parts. Items: the rows of each part.
    #[inline(always)]
    fn parts(&self, c: usize) -> impl Iterator<Item = Range<usize>> {
        let mut first = self.block.start;
        std::iter::from_fn(move || {
            let part = (first < self.block.end).then(|| self.part(first, c))?;
            first = part.end;
            Some(part)
        })
    }

    /// Computes the weights `p` of a part and a chunk, with maxima and sums. Returns their smallest exponent field.
    #[inline(always)]
    fn weights<L: Lanes, O: Operands<'a, E, K>>(
        &self,
        l: L,
        st: &mut State<'_>,
        Part { c, vectors }: Part,
        operands: &mut O,
        no_flush: bool,
        prefetcher: &mut Prefetcher,
    ) -> u8 {
        let mut min_exp = MinExponent::new(l);
        let share = prefetcher.share(vectors.len());
        for i in vectors.clone().step_by(O::STRIP) {
            let strip = i..vectors.end.min(i + O::STRIP);
            let cols = self.visible(strip.clone(), c);
            if !cols.is_empty() {
                operands.scores(strip.clone(), cols, no_flush);
            }
            for i in strip {
                prefetcher.issue(l, share);
                let visible = within(&self.shared.mask.keys(self.row_and_head(i).0), c);
                let p = st.weigh(l, i, operands.scores_of(i), &visible, self.shared.heads.scale());
                operands.set_weights(l, i, p, &mut min_exp);
            }
        }
        min_exp.field(l)
    }

    /// Computes a chunk's outputs for a part and merges them into the outputs of the previous chunks.
    #[inline(always)]
    fn merge<L: Lanes, O: Operands<'a, E, K>>(
        &self,
        l: L,
        st: &mut State<'_>,
        Part { c, vectors }: Part,
        operands: &mut O,
        no_flush: bool,
        prefetcher: &mut Prefetcher,
    ) {
        let (width, share) = (self.shared.width(), prefetcher.share(vectors.len()));
        for i in vectors.clone().step_by(O::STRIP) {
            let strip = i..vectors.end.min(i + O::STRIP);
            let depth = self.visible(strip.clone(), c);
            if depth.is_empty() {
                continue;
            }
            operands.outputs(strip.clone(), depth, &mut st.oc[i * width..], no_flush);
            for i in strip {
                prefetcher.issue(l, share);
                let (a, b) = (Lanes::splat(l, st.a[i]), Lanes::splat(l, st.b[i]));
                let at = i * width..(i + 1) * width;
                let pairs = st.o[at.clone()].chunks_exact_mut(LANES).zip(st.oc[at].chunks_exact(LANES));
                for (o, oc) in pairs {
                    let merged = Lanes::fma(l, l.load(o), a, Lanes::mul(l, l.load(oc), b));
                    l.store(o, merged);
                }
            }
        }
    }

    #[inline(always)]
    fn finish<L: Lanes>(&self, l: L, st: &mut State<'_>) {
        st.finish_sums(l);
        for i in 0..self.vectors() {
            let (row, head) = self.row_and_head(i);
            self.shared.write(l, st, i, row, head);
        }
    }
}

/// The first and the second half of a range of slots.
#[inline(always)]
fn halves(visible: &Range<usize>) -> (Range<usize>, Range<usize>) {
    let half = visible.start + visible.len() / 2;
    (visible.start..half, half..visible.end)
}
