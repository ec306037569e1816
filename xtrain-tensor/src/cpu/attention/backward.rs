//! One sequence and one kv head: every weight and its gradient are formed once, in tiles of 64 rows by
//! 64 keys, and enter dq, dk and dv from there.
//!
//! Heads of the group rising, inside them rows rising, inside them keys rising: so an element of dq
//! meets its keys, and an element of dk or dv its heads and rows, in the contract's order, whatever is
//! kept in memory in between.
mod tile;

use std::ops::Range;

use super::gather::{self, Ahead, Chunk, Keys};
use super::number::{Least, Number, fine};
use super::rows::{CHUNK, ended, union, within};
use super::{SERIAL, scratch};
use crate::cpu::lanes::{Kernel, LANES, Lanes, dispatch};
use crate::cpu::{Disjoint, Simd};
use crate::device::Cpu;
use crate::operands::{AttnMask, Heads};

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
    see: &AttnMask<'_>,
) -> [Vec<f32>; 3] {
    let sequences = see.rows_by_sequence();
    let mut out = [saved.q, saved.k, saved.v].map(|x| cpu.recycler.take::<f32>(x.len()));
    let [dq, dk, dv] = &mut out;
    if dk.len() > see.rows() * heads.nkv * heads.hd {
        // slots that hold no position; all others, and every row of dq, are written
        dk.fill(0.0);
        dv.fill(0.0);
    }
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
    see: &'a AttnMask<'a>,
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
        let keys = Keys { slots: self.see.slots, seq: self.seq, nkv, kv: self.kv, hd, next: None };
        let (mut least_k, mut least_v) = (Least::new(l), Least::new(l));
        // the values are needed transposed only: their rows pass through the memory of dq
        for x in [&mut *st.k, &mut *st.dq] {
            x[len * width..].fill(0.0);
        }
        keys.copy(l, self.saved.k, 0..len, (st.k, width), &mut least_k);
        keys.copy(l, self.saved.v, 0..len, (st.dq, width), &mut least_v);
        for (x, t) in [(&*st.k, &mut *st.kt), (&*st.dq, &mut *st.vt)] {
            for (x, t) in x.chunks_exact(CHUNK * width).zip(t.chunks_exact_mut(CHUNK * width)) {
                let chunk = Chunk { rows: x, stride: width };
                gather::transpose(l, chunk, width, 0..CHUNK, (t, &mut Ahead::nothing()));
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
        l.store_partial(out, ended(l, Lanes::mul(l, l.load(sum), factor)));
    }
}
