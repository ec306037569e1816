//! One tile of 64 rows by 64 keys: its weights and its contributions to the gradients.
use super::operands::Operands;
use super::{Item, NoFlush, State};
use crate::cpu::attention::number::Number;
use crate::cpu::attention::rows::{masked, within};
use crate::cpu::gemm_bf16::MinExponent;
use crate::cpu::lanes::{LANES, Lanes};

impl<E: Number> Item<'_, E> {
    /// Computes p and ds of the tile of block `block` and chunk `c`: +0 for invisible keys. Returns their smallest
    /// exponent fields.
    #[inline(always)]
    pub(super) fn tile<L: Lanes, O: Operands<E>>(
        &self,
        l: L,
        st: &State<'_>,
        operands: &mut O,
        [block, c]: [usize; 2],
        no_flush: &NoFlush,
    ) -> (u8, u8) {
        let rows = self.block(block);
        for t in rows.clone().step_by(O::STRIP) {
            let strip = t..rows.end.min(t + O::STRIP);
            let cols = self.visible(strip.clone(), c);
            if !cols.is_empty() {
                operands.scores(strip, c, cols, [no_flush.scores, no_flush.dp]);
            }
        }
        let scale = Lanes::splat(l, self.heads.scale());
        let mut min_exp = [MinExponent::new(l); 2];
        let padded = rows.len().next_multiple_of(O::STEP);
        for (i, t) in (rows.start..rows.start + padded).enumerate() {
            let visible = if t < rows.end { within(&self.keys(t), c) } else { 0..0 };
            let [mut p, mut ds] = [[l.zero(); 2]; 2];
            let [s, dp] = operands.scores_of(i);
            let (lse, delta) = (Lanes::splat(l, st.lse[t]), Lanes::splat(l, st.delta[t]));
            for half in 0..2 {
                let at = half * LANES..(half + 1) * LANES;
                if visible.end <= at.start || visible.start >= at.end {
                    continue;
                }
                let x = l.exp(Lanes::sub(l, Lanes::mul(l, l.load(&s[at.clone()]), scale), lse));
                let dx = Lanes::mul(l, x, Lanes::sub(l, l.load(&dp[at]), delta));
                p[half] = masked(l, half, &visible, x, l.zero());
                ds[half] = masked(l, half, &visible, dx, l.zero());
            }
            operands.set_weights(l, i, [p, ds], &mut min_exp);
        }
        operands.finish_weights(l, padded);
        let [p, ds] = min_exp.map(|min_exp| min_exp.field(l));
        (p, ds)
    }

    /// Adds a chunk of keys to dq of a block's rows.
    #[inline(always)]
    pub(super) fn add_dq<O: Operands<E>>(
        &self,
        st: &mut State<'_>,
        operands: &O,
        [block, c]: [usize; 2],
        no_flush: bool,
    ) {
        let rows = self.block(block);
        for t in rows.clone().step_by(O::STRIP) {
            let strip = t..rows.end.min(t + O::STRIP);
            let depth = self.visible(strip.clone(), c);
            if !depth.is_empty() {
                operands.add_dq(strip, c, depth, &mut st.dq[t * self.width()..], no_flush);
            }
        }
    }

    /// Adds a block of rows to dk and dv of a chunk's keys.
    #[inline(always)]
    pub(super) fn add_dk_dv<O: Operands<E>>(
        &self,
        st: &mut State<'_>,
        operands: &O,
        [block, c]: [usize; 2],
        no_flush: &NoFlush,
    ) {
        let (rows, keys) = (self.block(block), self.block(c));
        for j in keys.clone().step_by(O::STRIP) {
            let strip = j..keys.end.min(j + O::STRIP);
            let end = self.mask.visible_until(strip.end - 1, self.len()).min(rows.end);
            let depth = j.max(rows.start).max(self.prefix)..end;
            if depth.is_empty() {
                continue;
            }
            let depth = depth.start - rows.start..depth.end - rows.start;
            let at = j * self.width();
            let sums = [&mut st.dk[at..], &mut st.dv[at..]];
            operands.add_dk_dv(strip, block, depth, sums, [no_flush.dk, no_flush.dv]);
        }
    }
}
