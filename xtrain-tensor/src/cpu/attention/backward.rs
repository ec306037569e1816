//! One sequence and one kv head: every weight and its gradient are formed once, in tiles of 64 rows by
//! 64 keys, and enter dq, dk and dv from there.
//!
//! Heads of the group rising, inside them rows rising, inside them keys rising: so an element of dq
//! meets its keys, and an element of dk or dv its heads and rows, in the contract's order, whatever is
//! kept in memory in between.
use std::ops::Range;

use super::gather::{self, Keys};
use super::number::{Least, Number, fine};
use super::product::{Product, Start};
use super::rows::{CHUNK, STRIP, masked, union, widen, within};
use super::{SERIAL, scratch};
use crate::cpu::lanes::{Kernel, LANES, Lanes, dispatch};
use crate::cpu::{Disjoint, Simd};
use crate::device::Cpu;
use crate::ops::Visible;
use crate::reference::Heads;

/// What the backward reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Saved<'a, E> {
    pub(crate) q: &'a [E],
    pub(crate) k: &'a [E],
    pub(crate) v: &'a [E],
    pub(crate) y: &'a [E],
    pub(crate) dy: &'a [E],
    pub(crate) lse: &'a [f32],
}

/// `dq`, `dk` and `dv` of [`crate::ops::attention_backward`], for whole sequences whose positions have
/// each a slot of their own.
pub(crate) fn attention_backward<E: Number>(
    cpu: &Cpu,
    saved: Saved<'_, E>,
    heads: Heads,
    see: &Visible<'_>,
) -> [Vec<f32>; 3] {
    let sequences = see.rows_by_sequence();
    let mut out = [saved.q, saved.k, saved.v].map(|x| vec![0.0; x.len()]);
    let [dq, dk, dv] = &mut out;
    let outputs = &[Disjoint::new(dq), Disjoint::new(dk), Disjoint::new(dv)];
    let item = |i: usize| {
        let ((seq, rows), kv) = (&sequences[i / heads.nkv], i % heads.nkv);
        Item { saved, heads, see, simd: cpu.simd, rows, seq: *seq, kv, outputs }.run();
    };
    let n = sequences.len() * heads.nkv;
    let work: usize = (0..see.rows()).map(|n| see.keys(n).len()).sum();
    match 3 * work * heads.nh * heads.hd < SERIAL {
        true => (0..n).for_each(item),
        false => cpu.pool.run(n, item),
    }
    out
}

struct Item<'a, E> {
    saved: Saved<'a, E>,
    heads: Heads,
    see: &'a Visible<'a>,
    simd: Simd,
    /// The row of each position.
    rows: &'a [usize],
    seq: u32,
    kv: usize,
    outputs: &'a [Disjoint<'a, f32>; 3],
}

/// The item's buffers. Matrices of positions have `width` columns and are zero below the sequence.
struct State<'a> {
    /// By position: keys; queries, dy and dq of the head under way; the sums of dk and dv.
    k: &'a mut [f32],
    q: &'a mut [f32],
    dy: &'a mut [f32],
    dq: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    /// By chunk of 64 keys: keys and values, transposed.
    kt: &'a mut [f32],
    vt: &'a mut [f32],
    /// By position, of the head under way: L and D.
    lse: &'a mut [f32],
    delta: &'a mut [f32],
    /// A tile of 64 rows by 64 keys: scores, then weights; dp, then ds.
    p: &'a mut [f32],
    ds: &'a mut [f32],
}

/// Whether products can do without the search for tiny results: those of an item that are all in one
/// sum stop together.
struct Fine {
    scores: bool,
    dp: bool,
    dk: bool,
    dv: bool,
}

/// An item and its memory: what is compiled for each instruction set.
struct Work<'a, 'b, E> {
    item: &'b Item<'a, E>,
    state: State<'b>,
}

impl<E: Number> Kernel for Work<'_, '_, E> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        self.item.walk(l, &mut self.state);
    }
}

impl<E: Number> Item<'_, E> {
    fn run(&self) {
        let len = self.rows.len().next_multiple_of(CHUNK);
        let (all, tile) = (len * self.width(), CHUNK * CHUNK);
        let lens = [all, all, all, all, all, all, all, all, len, len, tile, tile];
        scratch::with(lens, |[k, q, dy, dq, dk, dv, kt, vt, lse, delta, p, ds]| {
            let state = State { k, q, dy, dq, dk, dv, kt, vt, lse, delta, p, ds };
            dispatch(self.simd, Work { item: self, state });
        });
    }

    /// Elements of a padded vector.
    #[inline(always)]
    fn width(&self) -> usize {
        self.heads.hd.next_multiple_of(LANES)
    }

    /// What the row at position `t` sees.
    #[inline(always)]
    fn keys(&self, t: usize) -> Range<usize> {
        self.see.keys(self.rows[t])
    }

    #[inline(always)]
    fn walk<L: Lanes>(&self, l: L, st: &mut State<'_>) {
        let group = self.heads.nh / self.heads.nkv;
        let (k, v) = self.gather_keys(l, st);
        let mut can = Fine { scores: true, dp: true, dk: true, dv: true };
        for head in self.kv * group..(self.kv + 1) * group {
            let (q, dy) = self.gather_head(l, st, head);
            (can.scores, can.dp) = (fine(q, k), fine(dy, v));
            for block in 0..self.rows.len().div_ceil(CHUNK) {
                let mut dq_fine = true;
                let first = self.keys(block * CHUNK).start;
                for c in first / CHUNK..=block {
                    let (p, ds) = self.tile(l, st, [block, c], &can);
                    dq_fine &= fine(ds, k);
                    can.dk &= fine(ds, q);
                    can.dv &= fine(p, dy);
                    self.add_dq(st, [block, c], dq_fine);
                    self.add_dk_dv(st, [block, c], &can);
                }
            }
            self.put_dq(l, st, head);
        }
        self.put_dk_dv(l, st);
    }

    /// Keys and values, and their least magnitudes.
    #[inline(always)]
    fn gather_keys<L: Lanes>(&self, l: L, st: &mut State<'_>) -> (f32, f32) {
        let (len, width) = (self.rows.len(), self.width());
        let Heads { nkv, hd, .. } = self.heads;
        let keys = Keys { slots: self.see.slots, seq: self.seq, nkv, kv: self.kv, hd };
        let (mut least_k, mut least_v) = (Least::new(l), Least::new(l));
        // the values are needed transposed only: their rows pass through the memory of dq
        for x in [&mut *st.k, &mut *st.dq] {
            x[len * width..].fill(0.0);
        }
        keys.copy(l, self.saved.k, 0..len, (st.k, width), &mut least_k);
        keys.copy(l, self.saved.v, 0..len, (st.dq, width), &mut least_v);
        for (x, t) in [(&*st.k, &mut *st.kt), (&*st.dq, &mut *st.vt)] {
            for (x, t) in x.chunks_exact(CHUNK * width).zip(t.chunks_exact_mut(CHUNK * width)) {
                gather::transpose(l, x, width, 0..CHUNK, t);
            }
        }
        st.dk.fill(0.0);
        st.dv.fill(0.0);
        (least_k.value(l), least_v.value(l))
    }

    /// Queries, dy, L and D of a head, and the least magnitudes of the first two.
    #[inline(always)]
    fn gather_head<L: Lanes>(&self, l: L, st: &mut State<'_>, head: usize) -> (f32, f32) {
        let (len, width) = (self.rows.len(), self.width());
        let (mut least_q, mut least_dy) = (Least::new(l), Least::new(l));
        st.q[len * width..].fill(0.0);
        st.dy[len * width..].fill(0.0);
        st.dq.fill(0.0);
        for (t, &n) in self.rows.iter().enumerate() {
            let (from, to) = (self.heads.q(n, head), t * width..(t + 1) * width);
            let (y, dy) = (&self.saved.y[from.clone()], &self.saved.dy[from.clone()]);
            gather::row(l, &self.saved.q[from], &mut st.q[to.clone()], &mut least_q);
            gather::row(l, dy, &mut st.dy[to], &mut least_dy);
            let mut sum = l.zero();
            for (y, dy) in y.chunks(LANES).zip(dy.chunks(LANES)) {
                sum = Lanes::fma(l, E::load(l, dy), E::load(l, y), sum);
            }
            st.delta[t] = l.sum32(sum);
            st.lse[t] = self.saved.lse[n * self.heads.nh + head];
        }
        (least_q.value(l), least_dy.value(l))
    }

    /// The rows of a block that exist.
    #[inline(always)]
    fn block(&self, block: usize) -> Range<usize> {
        block * CHUNK..self.rows.len().min((block + 1) * CHUNK)
    }

    /// What the rows `rows` see of chunk `c`, together.
    #[inline(always)]
    fn seen(&self, rows: Range<usize>, c: usize) -> Range<usize> {
        rows.fold(0..0, |seen, t| union(seen, within(&self.keys(t), c)))
    }

    /// Forms p and ds of a tile, rounded, +0 where a key is not visible. Returns their least magnitudes.
    #[inline(always)]
    fn tile<L: Lanes>(&self, l: L, st: &mut State<'_>, [block, c]: [usize; 2], can: &Fine) -> (f32, f32) {
        let width = self.width();
        let rows = self.block(block);
        for t in rows.clone().step_by(STRIP) {
            let strip = t..rows.end.min(t + STRIP);
            let cols = self.seen(strip.clone(), c);
            if cols.is_empty() {
                continue;
            }
            let from = (t - rows.start) * CHUNK;
            let pairs = [(&*st.q, &*st.kt, &mut *st.p, can.scores), (&*st.dy, &*st.vt, &mut *st.ds, can.dp)];
            for (left, right, out, fine) in pairs {
                let product = Product {
                    left: &left[t * width..],
                    left_row: width,
                    left_step: 1,
                    right: &right[c * CHUNK * width..],
                    right_row: CHUNK,
                    out: &mut out[from..],
                    out_row: CHUNK,
                    start: Start::Zero,
                    rows: strip.len(),
                    cols: cols.clone(),
                    depth: 0..self.heads.hd.next_multiple_of(E::STEP),
                };
                E::product(self.simd, fine, product);
            }
        }
        let scale = Lanes::splat(l, self.heads.scale());
        let (mut least_p, mut least_ds) = (Least::new(l), Least::new(l));
        let lines = st.p.chunks_exact_mut(CHUNK).zip(st.ds.chunks_exact_mut(CHUNK));
        for (t, (p, ds)) in (rows.start..rows.end.next_multiple_of(E::STEP)).zip(lines) {
            let seen = if t < rows.end { within(&self.keys(t), c) } else { 0..0 };
            let (lse, delta) = (Lanes::splat(l, st.lse[t]), Lanes::splat(l, st.delta[t]));
            for half in 0..2 {
                let at = half * LANES..(half + 1) * LANES;
                let (p, ds) = (&mut p[at.clone()], &mut ds[at.clone()]);
                if seen.end <= at.start || seen.start >= at.end {
                    l.store(p, l.zero());
                    l.store(ds, l.zero());
                    continue;
                }
                let x = l.exp(Lanes::sub(l, Lanes::mul(l, l.load(p), scale), lse));
                let dx = Lanes::mul(l, x, Lanes::sub(l, l.load(ds), delta));
                let x = masked(l, half, &seen, x, l.zero());
                let dx = masked(l, half, &seen, dx, l.zero());
                l.store(p, E::rounded(l, x, &mut least_p));
                l.store(ds, E::rounded(l, dx, &mut least_ds));
            }
        }
        (least_p.value(l), least_ds.value(l))
    }

    /// dq of a block's rows, continued over the keys of a chunk.
    #[inline(always)]
    fn add_dq(&self, st: &mut State<'_>, [block, c]: [usize; 2], fine: bool) {
        let width = self.width();
        let rows = self.block(block);
        for t in rows.clone().step_by(STRIP) {
            let strip = t..rows.end.min(t + STRIP);
            let depth = self.seen(strip.clone(), c);
            if depth.is_empty() {
                continue;
            }
            let product = Product {
                left: &st.ds[(t - rows.start) * CHUNK..],
                left_row: CHUNK,
                left_step: 1,
                right: &st.k[c * CHUNK * width..],
                right_row: width,
                out: &mut st.dq[t * width..],
                out_row: width,
                start: Start::Out,
                rows: strip.len(),
                cols: 0..width,
                depth: widen(depth, E::STEP),
            };
            E::product(self.simd, fine, product);
        }
    }

    /// dk and dv of a chunk's keys, continued over a block's rows.
    #[inline(always)]
    fn add_dk_dv(&self, st: &mut State<'_>, [block, c]: [usize; 2], can: &Fine) {
        let width = self.width();
        let (rows, keys) = (self.block(block), self.block(c));
        for j in keys.clone().step_by(STRIP) {
            let strip = j..keys.end.min(j + STRIP);
            let end = self.see.last_seeing(strip.end - 1, self.rows.len()).min(rows.end);
            let depth = j.max(rows.start)..end;
            if depth.is_empty() {
                continue;
            }
            let depth = widen(depth.start - rows.start..depth.end - rows.start, E::STEP);
            let pairs = [(&*st.ds, &*st.q, &mut *st.dk, can.dk), (&*st.p, &*st.dy, &mut *st.dv, can.dv)];
            for (left, right, out, fine) in pairs {
                let product = Product {
                    left: &left[j - keys.start..],
                    left_row: 1,
                    left_step: CHUNK,
                    right: &right[rows.start * width..],
                    right_row: width,
                    out: &mut out[j * width..],
                    out_row: width,
                    start: Start::Out,
                    rows: strip.len(),
                    cols: 0..width,
                    depth: depth.clone(),
                };
                E::product(self.simd, fine, product);
            }
        }
    }

    #[inline(always)]
    fn put_dq<L: Lanes>(&self, l: L, st: &State<'_>, head: usize) {
        let scale = Lanes::splat(l, self.heads.scale());
        for (&n, sum) in self.rows.iter().zip(st.dq.chunks_exact(self.width())) {
            // SAFETY: a row is in one sequence and a query head in one group, so no other item has
            // these elements.
            let out = unsafe { self.outputs[0].slice(self.heads.q(n, head)) };
            put(l, out, sum, scale);
        }
    }

    #[inline(always)]
    fn put_dk_dv<L: Lanes>(&self, l: L, st: &State<'_>) {
        let width = self.width();
        let (scale, one) = (Lanes::splat(l, self.heads.scale()), Lanes::splat(l, 1.0));
        for pos in 0..self.rows.len() {
            let slot = self.see.slots.slot(self.seq, pos);
            let at = self.heads.kv(slot, self.kv * (self.heads.nh / self.heads.nkv));
            // SAFETY: `ops::attention_backward` has checked that no two positions share a slot, and an
            // item has a kv head for itself, so no other item has these elements.
            let (dk, dv) = unsafe { (self.outputs[1].slice(at.clone()), self.outputs[2].slice(at)) };
            put(l, dk, &st.dk[pos * width..(pos + 1) * width], scale);
            put(l, dv, &st.dv[pos * width..(pos + 1) * width], one);
        }
    }
}

/// `out = sum * factor + 0`.
#[inline(always)]
fn put<L: Lanes>(l: L, out: &mut [f32], sum: &[f32], factor: L::F) {
    for (out, sum) in out.chunks_mut(LANES).zip(sum.chunks_exact(LANES)) {
        l.store_partial(out, Lanes::add(l, Lanes::mul(l, l.load(sum), factor), l.zero()));
    }
}
