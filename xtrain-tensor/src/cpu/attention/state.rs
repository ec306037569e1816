//! What the work items of attention's forward pass share, and the running sums of their query vectors.
use std::ops::Range;

use super::blocks::Cut;
use super::number::Number;
use super::rows::{masked, no_minus_zero};
use crate::cpu::lanes::{LANES, Lanes};
use crate::cpu::{Disjoint, Simd};
#[cfg(target_arch = "x86_64")]
use crate::faults::{self, Fault};
use crate::operands::{AttnMask, Heads};

/// What all work items read and write.
pub(super) struct Shared<'a, E, K> {
    pub(super) q: &'a [E],
    pub(super) keys_values: [&'a [K]; 2],
    pub(super) heads: Heads,
    pub(super) mask: &'a AttnMask<'a>,
    pub(super) simd: Simd,
    /// The cut of each row.
    pub(super) cuts: &'a [Cut],
    /// The running sums of the rows that are continued after their cut, `[rows][nh]` vectors of [`sums_len`] elements.
    pub(super) sums: Disjoint<'a, f32>,
    pub(super) y_out: Disjoint<'a, E>,
    pub(super) lse_out: Disjoint<'a, f32>,
}

/// Elements of the running sums of a query vector: its output, padded, its maximum and its sum.
pub(super) fn sums_len(heads: Heads) -> usize {
    heads.hd.next_multiple_of(LANES) + 2
}

/// The state of the query vectors of a work item, and the results of the current chunk.
pub(super) struct State<'a> {
    /// Output of a chunk; merged output.
    pub(super) oc: &'a mut [f32],
    pub(super) o: &'a mut [f32],
    /// Merged maximum and sum; those of a chunk; the factors of the merged and of the chunk's values.
    pub(super) m: &'a mut [f32],
    pub(super) l: &'a mut [f32],
    pub(super) mc: &'a mut [f32],
    pub(super) lc: &'a mut [f32],
    pub(super) a: &'a mut [f32],
    pub(super) b: &'a mut [f32],
}

impl State<'_> {
    /// The weights of query vector `i` for its `visible` slots of a chunk, 0 to 31 and 32 to 63, from their scores.
    /// Sets the maximum and the sum of the chunk.
    #[inline(always)]
    pub(super) fn weigh<L: Lanes>(
        &mut self,
        l: L,
        i: usize,
        scores: &[f32],
        visible: &Range<usize>,
        scale: f32,
    ) -> [L::F; 2] {
        if visible.is_empty() {
            (self.mc[i], self.lc[i]) = (f32::NEG_INFINITY, 0.0);
            return [l.zero(); 2];
        }
        let (scale, none) = (Lanes::splat(l, scale), Lanes::splat(l, f32::NEG_INFINITY));
        let (first, second) = scores.split_at(LANES);
        let s0 = masked(l, 0, visible, Lanes::mul(l, l.load(first), scale), none);
        if visible.end <= LANES {
            let top = l.max32(s0);
            let p0 = l.exp(Lanes::sub(l, s0, Lanes::splat(l, top)));
            (self.mc[i], self.lc[i]) = (top, l.sum32(p0));
            return [p0, l.zero()];
        }
        let s1 = masked(l, 1, visible, Lanes::mul(l, l.load(second), scale), none);
        let top = l.max32(Lanes::max(l, s0, s1));
        let p0 = l.exp(Lanes::sub(l, s0, Lanes::splat(l, top)));
        let p1 = l.exp(Lanes::sub(l, s1, Lanes::splat(l, top)));
        (self.mc[i], self.lc[i]) = (top, l.sum32(Lanes::add(l, p0, p1)));
        [p0, p1]
    }

    /// `m` becomes L.
    #[inline(always)]
    pub(super) fn finish_sums<L: Lanes>(&mut self, l: L) {
        for (m, sum) in self.m.chunks_exact_mut(LANES).zip(self.l.chunks_exact(LANES)) {
            l.store(m, Lanes::add(l, l.load(m), l.log(l.load(sum))));
        }
    }
}

impl<E: Number, K> Shared<'_, E, K> {
    #[inline(always)]
    pub(super) fn group(&self) -> usize {
        self.heads.nh / self.heads.nkv
    }

    /// Elements of a padded vector.
    #[inline(always)]
    pub(super) fn width(&self) -> usize {
        self.heads.hd.next_multiple_of(LANES)
    }

    /// Keeps the running sums of query vector `i`, that of a row and a head, if its row is continued.
    #[inline(always)]
    pub(super) fn keep(&self, st: &State<'_>, i: usize, row: usize, head: usize) {
        if let Some(at) = self.sums_of(row, head) {
            // SAFETY: a row is in one block and a query head in one group, so no other work item accesses these elements.
            let (o, sums) = unsafe { self.sums.slice(at) }.split_at_mut(self.width());
            o.copy_from_slice(&st.o[i * self.width()..(i + 1) * self.width()]);
            sums.copy_from_slice(&[st.m[i], st.l[i]]);
        }
    }

    /// Sets the running sums of query vector `i`, that of a row and a head: those that were kept, or those of no keys.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn resume(&self, st: &mut State<'_>, i: usize, row: usize, head: usize) {
        let o = &mut st.o[i * self.width()..(i + 1) * self.width()];
        let of_next = faults::on(Fault::SharedSumsOfNextRow) && row + 1 < self.cuts.len();
        let kept = self.sums_of(row + usize::from(of_next), head);
        match kept.filter(|_| !faults::on(Fault::SharedSumsLost)) {
            Some(at) => {
                // SAFETY: as in `keep`, whose work item has ended. The fault reads those of another row, on one thread.
                let (kept, sums) = unsafe { self.sums.slice(at) }.split_at(self.width());
                o.copy_from_slice(kept);
                (st.m[i], st.l[i]) = (sums[0], sums[1]);
            }
            None => {
                o.fill(0.0);
                (st.m[i], st.l[i]) = (f32::NEG_INFINITY, 0.0);
            }
        }
    }

    /// The elements of the sums of a query vector, if its row is continued.
    #[inline(always)]
    fn sums_of(&self, row: usize, head: usize) -> Option<Range<usize>> {
        let (cut, len) = (self.cuts[row], sums_len(self.heads));
        let at = (cut.index * self.heads.nh + head) * len;
        cut.continues().then_some(at..at + len)
    }

    /// Writes y and L of query vector `i`, that of a row and a head.
    #[inline(always)]
    pub(super) fn write<L: Lanes>(&self, l: L, st: &State<'_>, i: usize, row: usize, head: usize) {
        // SAFETY: a row is in one block and a query head in one group, so no other work item and no other vector of this
        // one accesses these elements.
        let (y, lse) = unsafe {
            let at = row * self.heads.nh + head;
            (self.y_out.slice(self.heads.q(row, head)), self.lse_out.slice(at..at + 1))
        };
        let sum = Lanes::splat(l, st.l[i]);
        for (y, o) in y.chunks_mut(LANES).zip(st.o[i * self.width()..].chunks_exact(LANES)) {
            E::write(l, y, no_minus_zero(l, Lanes::div(l, l.load(o), sum)));
        }
        lse[0] = st.m[i];
    }
}

/// Computes the factors that merge a chunk, and the merged maxima and sums. For the first chunk of a vector the
/// factors are 0 and 1, for a chunk without visible keys 1 and 0.
#[inline(always)]
pub(super) fn factors<L: Lanes>(l: L, st: &mut State<'_>) {
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
