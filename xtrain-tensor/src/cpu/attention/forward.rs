//! Blocks of rows against their keys, chunk by chunk of 64.
//!
//! A block's rows are of one sequence, or of sequences that begin with the same slots: the completions of a
//! prompt. A chunk that they share is read once for all of them.
use std::ops::Range;

use super::gather::{self, Ahead, Chunk, Keys};
use super::number::{Least, Number, fine};
use super::product::{Product, Start};
use super::rows::{CHUNK, STRIP, ended, masked, union, widen, within};
use super::{SERIAL, scratch};
use crate::cpu::lanes::{Kernel, LANES, Lanes, dispatch};
use crate::cpu::{Disjoint, Simd};
use crate::device::Cpu;
use crate::operands::{AttnMask, Heads};

/// Query vectors (rows times heads of the group) that one block holds, if its rows have that many.
const BLOCK: usize = 256;

/// `y` and `L` of [`crate::ops::attention`].
pub(crate) fn attention<E: Number>(
    cpu: &Cpu,
    [q, k, v]: [&[E]; 3],
    heads: Heads,
    see: &AttnMask<'_>,
) -> (Vec<E>, Vec<f32>) {
    let group = heads.nh / heads.nkv;
    let blocks = blocks(see, (BLOCK / group).max(1), see.rows().div_ceil(cpu.pool.threads()));
    let mut y = cpu.recycler.take(q.len());
    let mut lse = cpu.recycler.take(see.rows() * heads.nh);
    let outputs = (&Disjoint::new(&mut y), &Disjoint::new(&mut lse));
    let item = |i: usize| {
        let place = |i: usize| Some((blocks.get(i / heads.nkv)?, i % heads.nkv));
        let Some((block, kv)) = place(i) else { return };
        let next = place(i + 1).map(|(block, kv)| (see.seq[block.start], kv));
        let block = block.clone();
        Item { operands: [q, k, v], heads, see, simd: cpu.simd, block, kv, next, outputs }.run();
    };
    let n = blocks.len() * heads.nkv;
    let work: usize = (0..see.rows()).map(|n| see.keys(n).len()).sum();
    match work * heads.nh * heads.hd < SERIAL {
        true => (0..n).for_each(item),
        false => cpu.pool.run(n, item),
    }
    (y, lse)
}

/// Runs of rows that begin with the same slots, at most `most` each. One that has `enough` is not joined by
/// another sequence, so that every thread finds work.
fn blocks(see: &AttnMask<'_>, most: usize, enough: usize) -> Vec<Range<usize>> {
    let mut blocks: Vec<Range<usize>> = Vec::new();
    for n in 0..see.rows() {
        let joins = |block: &Range<usize>| {
            block.len() < most
                && (see.seq[n] == see.seq[n - 1] || block.len() < enough && share_a_chunk(see, n - 1, n))
        };
        match blocks.last_mut() {
            Some(block) if joins(block) => block.end = n + 1,
            _ => blocks.push(n..n + 1),
        }
    }
    blocks
}

/// Whether two rows find the first chunk that either sees in the same slots.
fn share_a_chunk(see: &AttnMask<'_>, a: usize, b: usize) -> bool {
    let start = see.keys(a).start.min(see.keys(b).start) / CHUNK * CHUNK;
    see.slots.same(see.seq[a], see.seq[b], start..start + CHUNK)
}

/// One block of rows and one kv head. Query vectors are numbered row by row, the group's heads inside.
struct Item<'a, E> {
    operands: [&'a [E]; 3],
    heads: Heads,
    see: &'a AttnMask<'a>,
    simd: Simd,
    block: Range<usize>,
    kv: usize,
    /// The sequence and the kv head of the item after this.
    next: Option<(u32, usize)>,
    outputs: (&'a Disjoint<'a, E>, &'a Disjoint<'a, f32>),
}

/// The state of the block's query vectors, and what the chunk under way adds.
struct State<'a> {
    /// Queries, scores (then weights) of a chunk, the chunk's and the merged output.
    q: &'a mut [f32],
    s: &'a mut [f32],
    oc: &'a mut [f32],
    o: &'a mut [f32],
    /// Merged maximum and sum; the chunk's; the factors of both.
    m: &'a mut [f32],
    l: &'a mut [f32],
    mc: &'a mut [f32],
    lc: &'a mut [f32],
    a: &'a mut [f32],
    b: &'a mut [f32],
}

/// An item and its memory: what is compiled for each instruction set.
struct Work<'a, 'b, E> {
    item: &'b Item<'a, E>,
    state: State<'b>,
    /// A chunk's keys, the same transposed, and its values.
    chunk: [&'b mut [f32]; 3],
}

impl<E: Number> Kernel for Work<'_, '_, E> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        self.item.walk(l, &mut self.state, self.chunk);
    }
}

impl<E: Number> Item<'_, E> {
    fn run(&self) {
        let (n, width) = (self.vectors(), self.width());
        let (all, one, chunk) = (n * width, n.next_multiple_of(LANES), CHUNK * width);
        let lens = [all, n * CHUNK, all, all, one, one, one, one, one, one, chunk, chunk, chunk];
        scratch::with(lens, |[q, s, oc, o, m, l, mc, lc, a, b, k, kt, v]| {
            let state = State { q, s, oc, o, m, l, mc, lc, a, b };
            dispatch(self.simd, Work { item: self, state, chunk: [k, kt, v] });
        });
    }

    #[inline(always)]
    fn group(&self) -> usize {
        self.heads.nh / self.heads.nkv
    }

    /// Query vectors.
    #[inline(always)]
    fn vectors(&self) -> usize {
        self.block.len() * self.group()
    }

    /// Elements of a padded vector.
    #[inline(always)]
    fn width(&self) -> usize {
        self.heads.hd.next_multiple_of(LANES)
    }

    /// The row and the head of a query vector.
    #[inline(always)]
    fn place(&self, i: usize) -> (usize, usize) {
        (self.block.start + i / self.group(), self.kv * self.group() + i % self.group())
    }

    /// The rows from `first` on, as many as find what they see of chunk `c` in the same slots.
    #[inline(always)]
    fn part(&self, first: usize, c: usize) -> Range<usize> {
        let see = self.see;
        let mut seen = within(&see.keys(first), c);
        let mut end = first + 1;
        while end < self.block.end {
            let next = within(&see.keys(end), c);
            let apart = next.start.max(seen.start) > next.end.min(seen.end);
            if apart && !seen.is_empty() && !next.is_empty() {
                break; // what lies between is nobody's, and may hold anything
            }
            let both = union(seen, next);
            let positions = c * CHUNK + both.start..c * CHUNK + both.end;
            if !see.slots.same(see.seq[first], see.seq[end], positions) {
                break;
            }
            (seen, end) = (both, end + 1);
        }
        first..end
    }

    /// The keys of a part's sequence; what is asked for ahead are those of the part behind, or of the next item.
    #[inline(always)]
    fn keys(&self, part: &Range<usize>) -> Keys<'_> {
        let behind = (part.end < self.block.end).then(|| (self.see.seq[part.end], self.kv));
        Keys {
            slots: self.see.slots,
            seq: self.see.seq[part.start],
            nkv: self.heads.nkv,
            kv: self.kv,
            hd: self.heads.hd,
            next: behind.or(self.next),
        }
    }

    /// The query vectors of rows of the block.
    #[inline(always)]
    fn vectors_of(&self, rows: &Range<usize>) -> Range<usize> {
        let at = |row: usize| (row - self.block.start) * self.group();
        at(rows.start)..at(rows.end)
    }

    /// What the query vectors `range` see of chunk `c`, together.
    #[inline(always)]
    fn seen(&self, range: Range<usize>, c: usize) -> Range<usize> {
        let rows = self.place(range.start).0..=self.place(range.end - 1).0;
        rows.fold(0..0, |seen, n| union(seen, within(&self.see.keys(n), c)))
    }

    #[inline(always)]
    fn walk<L: Lanes>(&self, l: L, st: &mut State<'_>, [k, kt, v]: [&mut [f32]; 3]) {
        let (n, width) = (self.vectors(), self.width());
        let mut least_q = Least::new(l);
        for (i, q) in st.q.chunks_exact_mut(width).take(n).enumerate() {
            let (row, head) = self.place(i);
            gather::row(l, &self.operands[0][self.heads.q(row, head)], q, &mut least_q);
        }
        let least_q = least_q.value(l);
        st.m.fill(f32::NEG_INFINITY);
        st.l.fill(0.0);
        st.o[..n * width].fill(0.0);

        let all = self.block.clone().fold(0..0, |all, n| union(all, self.see.keys(n)));
        for c in all.start / CHUNK..all.end.div_ceil(CHUNK) {
            if self.seen(0..n, c).is_empty() {
                continue;
            }
            let mut least_p = f32::INFINITY;
            for part in self.parts(c) {
                let (mut least_k, seen) = (Least::new(l), self.seen(self.vectors_of(&part), c));
                let keys = self.keys(&part);
                let mut ahead = keys.ahead(self.operands[2], (c, &seen), halves(&seen).0, width);
                if !seen.is_empty() {
                    let mut ahead = keys.ahead(self.operands[1], (c, &seen), seen.clone(), width);
                    let at = (c, seen.clone());
                    let key = keys.chunk(l, self.operands[1], at, (&mut *k, width), &mut least_k);
                    gather::transpose(l, key, width, seen, (kt, &mut ahead));
                }
                let fine = fine(least_q, least_k.value(l));
                let at = (c, self.vectors_of(&part));
                least_p = least_p.min(self.weights(l, st, at, (kt, fine), &mut ahead));
            }
            factors(l, st);
            for part in self.parts(c) {
                let (mut least_v, seen) = (Least::new(l), self.seen(self.vectors_of(&part), c));
                if !seen.is_empty() {
                    let keys = self.keys(&part);
                    let mut ahead = keys.ahead(self.operands[2], (c, &seen), halves(&seen).1, width);
                    let value = keys.chunk(l, self.operands[2], (c, seen), (&mut *v, width), &mut least_v);
                    let fine = fine(least_p, least_v.value(l));
                    let at = (c, self.vectors_of(&part));
                    self.merge(l, st, at, (value, fine), &mut ahead);
                }
            }
        }
        self.finish(l, st);
    }

    /// The parts of the block at chunk `c`, one behind the other.
    #[inline(always)]
    fn parts(&self, c: usize) -> impl Iterator<Item = Range<usize>> {
        let mut first = self.block.start;
        std::iter::from_fn(move || {
            let part = (first < self.block.end).then(|| self.part(first, c))?;
            first = part.end;
            Some(part)
        })
    }

    /// Scores, then weights `p` of chunk `c`, of some query vectors, with its maxima and sums. Returns the least
    /// weight.
    #[inline(always)]
    fn weights<L: Lanes>(
        &self,
        l: L,
        st: &mut State<'_>,
        (c, vectors): (usize, Range<usize>),
        (kt, fine): (&[f32], bool),
        ahead: &mut Ahead,
    ) -> f32 {
        let width = self.width();
        let depth = 0..self.heads.hd.next_multiple_of(E::STEP);
        let scale = Lanes::splat(l, self.heads.scale());
        let none = Lanes::splat(l, f32::NEG_INFINITY);
        let mut least = Least::new(l);
        let share = ahead.share(vectors.len());
        for i in vectors.clone().step_by(STRIP) {
            let strip = i..vectors.end.min(i + STRIP);
            let cols = self.seen(strip.clone(), c);
            if !cols.is_empty() {
                let product = Product {
                    left: &st.q[i * width..],
                    left_row: width,
                    left_step: 1,
                    right: kt,
                    right_row: CHUNK,
                    out: &mut st.s[i * CHUNK..],
                    out_row: CHUNK,
                    start: Start::Zero,
                    rows: strip.len(),
                    cols,
                    depth: depth.clone(),
                };
                E::product(self.simd, fine, product);
            }
            for i in strip {
                ahead.ask(l, share);
                let seen = within(&self.see.keys(self.place(i).0), c);
                if seen.is_empty() {
                    (st.mc[i], st.lc[i]) = (f32::NEG_INFINITY, 0.0);
                    st.s[i * CHUNK..(i + 1) * CHUNK].fill(0.0);
                    continue;
                }
                let (first, second) = st.s[i * CHUNK..(i + 1) * CHUNK].split_at_mut(LANES);
                let s0 = masked(l, 0, &seen, Lanes::mul(l, l.load(first), scale), none);
                if seen.end <= LANES {
                    let top = l.max32(s0);
                    let p0 = l.exp(Lanes::sub(l, s0, Lanes::splat(l, top)));
                    (st.mc[i], st.lc[i]) = (top, l.sum32(p0));
                    l.store(first, E::rounded(l, p0, &mut least));
                    l.store(second, l.zero());
                    continue;
                }
                let s1 = masked(l, 1, &seen, Lanes::mul(l, l.load(second), scale), none);
                let top = l.max32(Lanes::max(l, s0, s1));
                let p0 = l.exp(Lanes::sub(l, s0, Lanes::splat(l, top)));
                let p1 = l.exp(Lanes::sub(l, s1, Lanes::splat(l, top)));
                (st.mc[i], st.lc[i]) = (top, l.sum32(Lanes::add(l, p0, p1)));
                l.store(first, E::rounded(l, p0, &mut least));
                l.store(second, E::rounded(l, p1, &mut least));
            }
        }
        least.value(l)
    }

    /// The chunk's outputs of some query vectors, merged into those of the chunks before.
    #[inline(always)]
    fn merge<L: Lanes>(
        &self,
        l: L,
        st: &mut State<'_>,
        (c, vectors): (usize, Range<usize>),
        (value, fine): (Chunk<'_>, bool),
        ahead: &mut Ahead,
    ) {
        let (width, share) = (self.width(), ahead.share(vectors.len()));
        for i in vectors.clone().step_by(STRIP) {
            let strip = i..vectors.end.min(i + STRIP);
            let depth = self.seen(strip.clone(), c);
            if depth.is_empty() {
                continue;
            }
            let product = Product {
                left: &st.s[i * CHUNK..],
                left_row: CHUNK,
                left_step: 1,
                right: value.rows,
                right_row: value.stride,
                out: &mut st.oc[i * width..],
                out_row: width,
                start: Start::Zero,
                rows: strip.len(),
                cols: 0..width,
                depth: widen(depth, E::STEP),
            };
            E::product(self.simd, fine, product);
            for i in strip {
                ahead.ask(l, share);
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
        let width = self.width();
        // m becomes L
        for (m, sum) in st.m.chunks_exact_mut(LANES).zip(st.l.chunks_exact(LANES)) {
            l.store(m, Lanes::add(l, l.load(m), l.log(l.load(sum))));
        }
        for i in 0..self.vectors() {
            let (row, head) = self.place(i);
            // SAFETY: a row is in one block and a query head in one group, so no other item has these
            // elements, nor has another vector of this one.
            let (y, lse) = unsafe {
                let at = row * self.heads.nh + head;
                (self.outputs.0.slice(self.heads.q(row, head)), self.outputs.1.slice(at..at + 1))
            };
            let sum = Lanes::splat(l, st.l[i]);
            for (y, o) in y.chunks_mut(LANES).zip(st.o[i * width..].chunks_exact(LANES)) {
                E::store(l, y, ended(l, Lanes::div(l, l.load(o), sum)));
            }
            lse[0] = st.m[i];
        }
    }
}

/// The first half of some slots, and the second.
#[inline(always)]
fn halves(seen: &Range<usize>) -> (Range<usize>, Range<usize>) {
    let half = seen.start + seen.len() / 2;
    (seen.start..half, half..seen.end)
}

/// The factors that merge a chunk, and the merged maxima and sums. A vector's first chunk has the
/// factors 0 and 1; a chunk that it does not see has 1 and 0.
#[inline(always)]
fn factors<L: Lanes>(l: L, st: &mut State<'_>) {
    let (zero, one, lowest) = (l.zero(), Lanes::splat(l, 1.0), Lanes::splat(l, f32::MIN));
    for i in (0..st.m.len()).step_by(LANES) {
        let (m, mc) = (l.load(&st.m[i..]), l.load(&st.mc[i..]));
        let top = Lanes::max(l, m, mc);
        let a = l.select_lt(m, lowest, zero, l.exp(Lanes::sub(l, m, top)));
        let b = l.select_lt(m, lowest, one, l.exp(Lanes::sub(l, mc, top)));
        let sum = Lanes::fma(l, l.load(&st.l[i..]), a, Lanes::mul(l, l.load(&st.lc[i..]), b));
        l.store(&mut st.m[i..], top);
        l.store(&mut st.l[i..], sum);
        l.store(&mut st.a[i..], a);
        l.store(&mut st.b[i..], b);
    }
}
