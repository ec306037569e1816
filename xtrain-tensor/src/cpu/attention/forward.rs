//! Attention forward: blocks of rows times their keys, in chunks of 64 keys.
use std::ops::Range;

use super::blocks::{Limits, Plan, chunks, part};
#[cfg(target_arch = "x86_64")]
use super::few;
use super::gather::{HeadView, Prefetcher};
use super::kv_element::KvElement;
use super::number::Number;
use super::operands::{ChunkSource, Operands};
#[cfg(target_arch = "x86_64")]
use super::paired::PairedMemory;
use super::rows::{CHUNK, SERIAL, union, within};
use super::scratch;
use super::state::{Shared, State, factors, sums_len};
use super::widened::Widened;
use crate::cpu::gemm_bf16::{MinExponent, NO_EXPONENT, on_lattice};
#[cfg(target_arch = "x86_64")]
use crate::cpu::gemm_bf16::{PairDot, PairProduct, TileDot};
#[cfg(target_arch = "x86_64")]
use crate::cpu::lanes::with_avx512;
use crate::cpu::lanes::{Kernel, LANES, Lanes, dispatch};
use crate::cpu::scratch::Buffer;
use crate::cpu::{Disjoint, Simd};
use crate::device::Cpu;
use crate::operands::{AttnMask, Heads};

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
    let (threads, tiles) = (cpu.pool.threads(), cpu.simd == Simd::Amx && E::PAIRED);
    let plan = Plan::new(mask, &Limits::new(heads, mask.rows(), threads, tiles));
    let work = (0..mask.rows()).map(|n| mask.keys(n).len()).sum::<usize>();
    let serial = threads == 1 || work * heads.nh * heads.hd < SERIAL;
    let mut y = cpu.recycler.acquire(q.len());
    let mut lse = cpu.recycler.acquire(mask.rows() * heads.nh);
    let mut sums = Buffer::new(plan.continued * heads.nh * sums_len(heads));
    let shared = Shared {
        q,
        keys_values,
        heads,
        mask,
        simd: cpu.simd,
        cuts: &plan.cuts,
        sums: Disjoint::new(&mut sums),
        y_out: Disjoint::new(&mut y),
        lse_out: Disjoint::new(&mut lse),
    };
    let shared = &shared;
    let run = |n: usize, item: &(dyn Fn(usize) + Sync)| match serial {
        true => (0..n).for_each(item),
        false => cpu.pool.run(n, item),
    };
    let block_and_head = |i: usize| Some((*plan.blocks.get(i / heads.nkv)?, i % heads.nkv));
    run(plan.blocks.len() * heads.nkv, &|i| {
        let Some(([start, end], kv)) = block_and_head(i) else { return };
        let next = block_and_head(i + 1).map(|([start, _], kv)| (mask.seq[start], kv));
        Item { shared, block: start..end, kv, next }.run();
    });
    #[cfg(target_arch = "x86_64")]
    {
        let work = few::Division::new(shared, &plan.singles, if serial { 1 } else { 2 * threads });
        run(plan.singles.len() * heads.nkv, &|i| work.run(i));
    }
    (y, lse)
}

/// A work item: one block of rows and one kv head, each row up to its cut. Query vectors are numbered by row, then by
/// head of the group.
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

        let last_cut = self.block.clone().map(|row| self.shared.cuts[row].chunk).max().unwrap_or(0);
        let all = chunks(self.shared.mask, &self.block);
        for c in all.start..all.end.min(last_cut) {
            if self.visible(0..n, c).is_empty() {
                continue;
            }
            st.mc.fill(f32::NEG_INFINITY);
            st.lc.fill(0.0);
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

    /// Splits the rows of the block whose cut is after chunk `c` into parts. Items: the rows of each part.
    #[inline(always)]
    fn parts(&self, c: usize) -> impl Iterator<Item = Range<usize>> {
        let mut rest = self.block.clone();
        let is_cut = move |&row: &usize| self.shared.cuts[row].chunk <= c;
        std::iter::from_fn(move || {
            let first = rest.clone().find(|row| !is_cut(row))?;
            let same = part(self.shared.mask, first..rest.end, c);
            rest.start = (first..same.end).find(is_cut).unwrap_or(same.end);
            Some(first..rest.start)
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
        let has_cut = |i: usize| self.shared.cuts[self.row_and_head(i).0].chunk < usize::MAX;
        for i in (0..self.vectors()).filter(|&i| has_cut(i)) {
            let (row, head) = self.row_and_head(i);
            self.shared.keep(st, i, row, head);
        }
        st.finish_sums(l);
        for i in (0..self.vectors()).filter(|&i| !has_cut(i)) {
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
