//! Attention backward. A work item is one tree of sequences and one kv head; sequences that share a prefix form a tree.
//! Each weight and its gradient are computed once, in tiles of 64 rows by 64 keys, and then added to dq, dk and dv.
//!
//! The loops run over the heads of the group, then over rows, then over keys, each in ascending order. An element of
//! dq thus sums its keys, and an element of dk or dv its heads and rows, in the order of docs/numerics.md. Storing
//! the partial sums between tiles does not change that order.
mod operands;
#[cfg(target_arch = "x86_64")]
mod paired;
mod tile;
mod widened;

use std::collections::BTreeMap;
use std::ops::Range;

use self::operands::Operands;
#[cfg(target_arch = "x86_64")]
use self::paired::PairedMemory;
use self::widened::Widened;
use super::gather::HeadView;
use super::number::Number;
use super::rows::{CHUNK, SERIAL, no_minus_zero, union, within};
use super::scratch;
use crate::cpu::gemm_bf16::{MinExponent, on_lattice};
#[cfg(target_arch = "x86_64")]
use crate::cpu::gemm_bf16::{PairDot, PairProduct, TileDot};
#[cfg(target_arch = "x86_64")]
use crate::cpu::lanes::with_avx512;
use crate::cpu::lanes::{Kernel, LANES, Lanes, dispatch};
use crate::cpu::{Disjoint, Simd};
use crate::device::Cpu;
use crate::faults::{self, Fault};
use crate::operands::{AttnMask, Heads};
use crate::reference::AttentionSaved;

/// [`crate::ops::attention_backward`].
pub(crate) fn attention_backward<E: Number>(
    cpu: &Cpu,
    saved: AttentionSaved<'_, E, f32>,
    heads: Heads,
    mask: &AttnMask<'_>,
) -> [Vec<f32>; 3] {
    let sequences = mask.rows_by_sequence();
    let trees = trees(mask, &sequences);
    let mut out = [saved.q, saved.k, saved.v].map(|x| cpu.recycler.acquire::<f32>(x.len()));
    let [dq, dk, dv] = &mut out;
    if dk.len() > mask.rows() * heads.nkv * heads.hd || mask.shares_prefixes(&sequences) {
        // slots without a row, and slots that receive a sum; all others, and every row of dq, are written
        dk.fill(0.0);
        dv.fill(0.0);
    }
    let outputs = &[Disjoint::new(dq), Disjoint::new(dk), Disjoint::new(dv)];
    let item = |i: usize| {
        let (tree, kv) = (&trees[i / heads.nkv], i % heads.nkv);
        for &(seq, rows) in tree {
            let prefix = mask.pos[rows[0]] as usize;
            let adds = tree.len() > 1 && !faults::on(Fault::PrefixGradientOverwritten);
            Item { saved, heads, mask, simd: cpu.simd, rows, prefix, adds, seq: *seq, kv, outputs }.run();
        }
    };
    let n = trees.len() * heads.nkv;
    let work: usize = (0..mask.rows()).map(|n| mask.keys(n).len()).sum();
    match 3 * work * heads.nh * heads.hd < SERIAL {
        true => (0..n).for_each(item),
        false => cpu.pool.run(n, item),
    }
    out
}

/// The rows of a sequence.
type Sequence<'a> = &'a (u32, Vec<usize>);

/// Sequences that share the slot of their first position, in ascending order.
fn trees<'a>(mask: &AttnMask<'_>, sequences: &'a [(u32, Vec<usize>)]) -> Vec<Vec<Sequence<'a>>> {
    if !mask.shares_prefixes(sequences) {
        return sequences.iter().map(|sequence| vec![sequence]).collect();
    }
    let mut trees: BTreeMap<usize, Vec<Sequence<'a>>> = BTreeMap::new();
    for sequence in sequences {
        trees.entry(mask.slots.slot(sequence.0, 0)).or_default().push(sequence);
    }
    trees.into_values().collect()
}

struct Item<'a, E> {
    saved: AttentionSaved<'a, E, f32>,
    heads: Heads,
    mask: &'a AttnMask<'a>,
    simd: Simd,
    /// The row of each position from `prefix` on.
    rows: &'a [usize],
    /// The number of positions whose keys belong to rows of other sequences.
    prefix: usize,
    /// Whether dk and dv are added to the outputs, because several sequences read their slots.
    adds: bool,
    seq: u32,
    kv: usize,
    outputs: &'a [Disjoint<'a, f32>; 3],
}

/// The sums of a work item. Matrices have a row of `width` elements per position.
struct State<'a> {
    /// dq of the current head; dk and dv.
    dq: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    /// By position, for the current head: L and D. They are read up to the end of a step of the products.
    lse: &'a mut [f32],
    delta: &'a mut [f32],
}

/// Which products need no flush to zero because no result can be tiny. For dk and dv this covers all products of a
/// work item, because they continue the same sums.
struct NoFlush {
    scores: bool,
    dp: bool,
    dk: bool,
    dv: bool,
}

/// A work item and its memory: the kernel that is compiled for each instruction set.
struct Work<'a, 'b, E, O> {
    item: &'b Item<'a, E>,
    state: State<'b>,
    operands: O,
}

impl<E: Number, O: Operands<E>> Kernel for Work<'_, '_, E, O> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        self.item.walk(l, &mut self.state, &mut self.operands);
    }
}

impl<E: Number> Item<'_, E> {
    fn run(&self) {
        let (len, width) = (self.len().next_multiple_of(CHUNK), self.width());
        let (all, tile) = (len * width, CHUNK * CHUNK);
        #[cfg(target_arch = "x86_64")]
        match self.simd {
            Simd::Avx512Bf16 if E::PAIRED => return self.run_paired(PairDot::new()),
            Simd::Amx if E::PAIRED => return self.run_paired(TileDot::new()),
            _ => {}
        }
        let lens = [all, all, all, len, len, all, all, all, all, all, all, tile, tile];
        scratch::with(lens, |[dq, dk, dv, lse, delta, k, q, dy, rows, kt, vt, p, ds]| {
            let state = State { dq, dk, dv, lse, delta };
            let (simd, hd) = (self.simd, self.heads.hd);
            let operands = Widened { simd, hd, width, k, q, dy, rows, kt, vt, p, ds };
            dispatch(self.simd, Work { item: self, state, operands });
        });
    }

    #[cfg(target_arch = "x86_64")]
    fn run_paired<P: PairProduct>(&self, product: P) {
        let (len, width) = (self.len().next_multiple_of(CHUNK), self.width());
        let (all, tile) = (len * width, CHUNK * CHUNK);
        let mut memory = PairedMemory::<P>::new(len, width);
        scratch::with([all, all, all, len, len, tile, tile], |[dq, dk, dv, lse, delta, s, dp]| {
            let (state, operands) = (State { dq, dk, dv, lse, delta }, memory.operands(product, [s, dp]));
            with_avx512(Work { item: self, state, operands });
        });
    }

    /// Elements of a padded vector.
    #[inline(always)]
    fn width(&self) -> usize {
        self.heads.hd.next_multiple_of(LANES)
    }

    /// The number of positions.
    #[inline(always)]
    fn len(&self) -> usize {
        self.prefix + self.rows.len()
    }

    /// The keys visible to the row at position `t`. Empty for a position of the prefix.
    #[inline(always)]
    fn keys(&self, t: usize) -> Range<usize> {
        t.checked_sub(self.prefix).map_or(0..0, |t| self.mask.keys(self.rows[t]))
    }

    #[inline(always)]
    fn walk<L: Lanes, O: Operands<E>>(&self, l: L, st: &mut State<'_>, operands: &mut O) {
        let group = self.heads.nh / self.heads.nkv;
        let (k, v) = self.read_keys(l, st, operands);
        let mut no_flush = NoFlush { scores: true, dp: true, dk: true, dv: true };
        for head in self.kv * group..(self.kv + 1) * group {
            let (q, dy) = self.read_head(l, st, operands, head);
            (no_flush.scores, no_flush.dp) = (on_lattice(q, k), on_lattice(dy, v));
            for block in self.prefix / CHUNK..self.len().div_ceil(CHUNK) {
                let mut dq_no_flush = true;
                let first = self.keys(self.prefix.max(block * CHUNK)).start;
                for c in first / CHUNK..=block {
                    let (p, ds) = self.tile(l, st, operands, [block, c], &no_flush);
                    dq_no_flush &= on_lattice(ds, k);
                    no_flush.dk &= on_lattice(ds, q);
                    let weighted = if faults::on(Fault::ValueGradientFlushOfQueries) { q } else { dy };
                    no_flush.dv &= on_lattice(p, weighted);
                    self.add_dq(st, operands, [block, c], dq_no_flush);
                    self.add_dk_dv(st, operands, [block, c], &no_flush);
                }
            }
            self.store_dq(l, st, head);
        }
        self.store_dk_dv(l, st);
    }

    /// Reads keys and values. Returns their smallest exponent fields.
    #[inline(always)]
    fn read_keys<L: Lanes>(&self, l: L, st: &mut State<'_>, operands: &mut impl Operands<E>) -> (u8, u8) {
        let Heads { nkv, hd, .. } = self.heads;
        let view = HeadView { slots: self.mask.slots, seq: self.seq, nkv, kv: self.kv, hd, next: None };
        let mut min_exp = [MinExponent::new(l); 2];
        operands.read_keys(l, view, [self.saved.k, self.saved.v], self.len(), &mut min_exp);
        for x in [&mut *st.dk, &mut *st.dv] {
            x[..self.len() * self.width()].fill(0.0);
        }
        let [k, v] = min_exp.map(|min_exp| min_exp.field(l));
        (k, v)
    }

    /// Reads queries, dy, L and D of a head. Returns the smallest exponent fields of the queries and of dy.
    #[inline(always)]
    fn read_head<L: Lanes, O: Operands<E>>(
        &self,
        l: L,
        st: &mut State<'_>,
        operands: &mut O,
        head: usize,
    ) -> (u8, u8) {
        let (len, width) = (self.len(), self.width());
        let mut min_exp = [MinExponent::new(l); 2];
        // the first block may begin with positions of the prefix, and the last step of a product end after the rows
        let (first, end) = (self.prefix / CHUNK * CHUNK, len.next_multiple_of(O::STEP));
        st.dq[first * width..len * width].fill(0.0);
        for t in first..end {
            let Some(&n) = t.checked_sub(self.prefix).and_then(|i| self.rows.get(i)) else {
                operands.set_no_row(l, t);
                continue;
            };
            let of_head = self.heads.q(n, head);
            let (y, dy) = (&self.saved.y[of_head.clone()], &self.saved.dy[of_head.clone()]);
            operands.set_row(l, t, [&self.saved.q[of_head], dy], &mut min_exp);
            let mut sum = l.zero();
            for (y, dy) in y.chunks(LANES).zip(dy.chunks(LANES)) {
                sum = Lanes::fma(l, E::read(l, dy), E::read(l, y), sum);
            }
            st.delta[t] = l.sum32(sum);
            st.lse[t] = self.saved.lse[n * self.heads.nh + head];
        }
        let [q, dy] = min_exp.map(|min_exp| min_exp.field(l));
        (q, dy)
    }

    /// The positions of a block, up to the end of the sequence.
    #[inline(always)]
    fn block(&self, block: usize) -> Range<usize> {
        block * CHUNK..self.len().min((block + 1) * CHUNK)
    }

    /// The slots of chunk `c` visible to any of the rows `rows`.
    #[inline(always)]
    fn visible(&self, rows: Range<usize>, c: usize) -> Range<usize> {
        rows.fold(0..0, |visible, t| union(visible, within(&self.keys(t), c)))
    }

    #[inline(always)]
    fn store_dq<L: Lanes>(&self, l: L, st: &State<'_>, head: usize) {
        let scale = Lanes::splat(l, self.heads.scale());
        for (&n, sum) in self.rows.iter().zip(st.dq.chunks_exact(self.width()).skip(self.prefix)) {
            // SAFETY: a row is in one sequence and a query head in one group, so no other work item accesses these
            // elements.
            let out = unsafe { self.outputs[0].slice(self.heads.q(n, head)) };
            store_scaled(l, out, sum, scale);
        }
    }

    #[inline(always)]
    fn store_dk_dv<L: Lanes>(&self, l: L, st: &State<'_>) {
        let width = self.width();
        let (scale, one) = (Lanes::splat(l, self.heads.scale()), Lanes::splat(l, 1.0));
        for pos in 0..self.len() {
            let slot = self.mask.slots.slot(self.seq, pos);
            let at = self.heads.kv(slot, self.kv * (self.heads.nh / self.heads.nkv));
            // SAFETY: `ops::attention_backward` has checked that every row has its own slot, and that a prefix is that
            // of one other sequence. So sequences that read the same slot also share their first slot and are in one
            // tree. Each work item of a tree has a different kv head: no other one accesses these elements.
            let (dk, dv) = unsafe { (self.outputs[1].slice(at.clone()), self.outputs[2].slice(at)) };
            let sums = [&st.dk[pos * width..(pos + 1) * width], &st.dv[pos * width..(pos + 1) * width]];
            for ((out, sum), factor) in [dk, dv].into_iter().zip(sums).zip([scale, one]) {
                match self.adds {
                    true => add_scaled(l, out, sum, factor),
                    false => store_scaled(l, out, sum, factor),
                }
            }
        }
    }
}

/// `out = out + (sum * factor + 0)`.
#[inline(always)]
fn add_scaled<L: Lanes>(l: L, out: &mut [f32], sum: &[f32], factor: L::F) {
    for (out, sum) in out.chunks_mut(LANES).zip(sum.chunks_exact(LANES)) {
        let more = no_minus_zero(l, Lanes::mul(l, l.load(sum), factor));
        let sum = Lanes::add(l, l.load_partial(out), more);
        l.store_partial(out, sum);
    }
}

/// `out = sum * factor + 0`.
#[inline(always)]
fn store_scaled<L: Lanes>(l: L, out: &mut [f32], sum: &[f32], factor: L::F) {
    for (out, sum) in out.chunks_mut(LANES).zip(sum.chunks_exact(LANES)) {
        l.store_partial(out, no_minus_zero(l, Lanes::mul(l, l.load(sum), factor)));
    }
}
