//! One tile of 64 rows by 64 keys: its weights and its contributions to the gradients.
use super::{Item, NoFlush, State};
use crate::cpu::attention::chunk::Chunk;
use crate::cpu::attention::number::Number;
use crate::cpu::attention::product::Product;
use crate::cpu::attention::rows::{CHUNK, STRIP, masked, widen, within};
use crate::cpu::gemm::{Beta, Matrix};
use crate::cpu::gemm_bf16::MinExponent;
use crate::cpu::lanes::{LANES, Lanes};

impl<E: Number> Item<'_, E> {
    /// Computes p and ds of a tile, rounded, and +0 for invisible keys. Returns their smallest exponent fields.
    #[inline(always)]
    pub(super) fn tile<L: Lanes>(
        &self,
        l: L,
        st: &mut State<'_>,
        block: usize,
        c: usize,
        no_flush: &NoFlush,
    ) -> (u8, u8) {
        let width = self.width();
        let rows = self.block(block);
        for t in rows.clone().step_by(STRIP) {
            let strip = t..rows.end.min(t + STRIP);
            let cols = self.visible(strip.clone(), c);
            if cols.is_empty() {
                continue;
            }
            let from = (t - rows.start) * CHUNK;
            let pairs = [
                (&*st.q, &*st.kt, &mut *st.p, no_flush.scores),
                (&*st.dy, &*st.vt, &mut *st.ds, no_flush.dp),
            ];
            for (a, b, out, no_flush) in pairs {
                let product = Product {
                    a: Matrix::new(&a[t * width..], strip.len(), width),
                    b: Chunk { rows: &b[c * CHUNK * width..], stride: CHUNK },
                    out: &mut out[from..],
                    out_row_step: CHUNK,
                    beta: Beta::Zero,
                    cols: cols.clone(),
                    depth: 0..self.heads.hd.next_multiple_of(E::STEP),
                };
                E::product(self.simd, no_flush, product);
            }
        }
        let scale = Lanes::splat(l, self.heads.scale());
        let (mut min_p, mut min_ds) = (MinExponent::new(l), MinExponent::new(l));
        let lines = st.p.chunks_exact_mut(CHUNK).zip(st.ds.chunks_exact_mut(CHUNK));
        for (t, (p, ds)) in (rows.start..rows.end.next_multiple_of(E::STEP)).zip(lines) {
            let visible = if t < rows.end { within(&self.keys(t), c) } else { 0..0 };
            let (lse, delta) = (Lanes::splat(l, st.lse[t]), Lanes::splat(l, st.delta[t]));
            for half in 0..2 {
                let at = half * LANES..(half + 1) * LANES;
                let (p, ds) = (&mut p[at.clone()], &mut ds[at.clone()]);
                if visible.end <= at.start || visible.start >= at.end {
                    l.store(p, l.zero());
                    l.store(ds, l.zero());
                    continue;
                }
                let x = l.exp(Lanes::sub(l, Lanes::mul(l, l.load(p), scale), lse));
                let dx = Lanes::mul(l, x, Lanes::sub(l, l.load(ds), delta));
                let x = masked(l, half, &visible, x, l.zero());
                let dx = masked(l, half, &visible, dx, l.zero());
                l.store(p, E::rounded(l, x, &mut min_p));
                l.store(ds, E::rounded(l, dx, &mut min_ds));
            }
        }
        (min_p.field(l), min_ds.field(l))
    }

    /// Adds a chunk of keys to dq of a block's rows.
    #[inline(always)]
    pub(super) fn add_dq(&self, st: &mut State<'_>, block: usize, c: usize, no_flush: bool) {
        let width = self.width();
        let rows = self.block(block);
        for t in rows.clone().step_by(STRIP) {
            let strip = t..rows.end.min(t + STRIP);
            let depth = self.visible(strip.clone(), c);
            if depth.is_empty() {
                continue;
            }
            let product = Product {
                a: Matrix::new(&st.ds[(t - rows.start) * CHUNK..], strip.len(), CHUNK),
                b: Chunk { rows: &st.k[c * CHUNK * width..], stride: width },
                out: &mut st.dq[t * width..],
                out_row_step: width,
                beta: Beta::One,
                cols: 0..width,
                depth: widen(depth, E::STEP),
            };
            E::product(self.simd, no_flush, product);
        }
    }

    /// Adds a block of rows to dk and dv of a chunk's keys.
    #[inline(always)]
    pub(super) fn add_dk_dv(&self, st: &mut State<'_>, block: usize, c: usize, no_flush: &NoFlush) {
        let width = self.width();
        let (rows, keys) = (self.block(block), self.block(c));
        for j in keys.clone().step_by(STRIP) {
            let strip = j..keys.end.min(j + STRIP);
            let end = self.mask.visible_until(strip.end - 1, self.len()).min(rows.end);
            let depth = j.max(rows.start).max(self.prefix)..end;
            if depth.is_empty() {
                continue;
            }
            let depth = widen(depth.start - rows.start..depth.end - rows.start, E::STEP);
            let pairs =
                [(&*st.ds, &*st.q, &mut *st.dk, no_flush.dk), (&*st.p, &*st.dy, &mut *st.dv, no_flush.dv)];
            for (a, b, out, no_flush) in pairs {
                let product = Product {
                    a: Matrix { data: &a[j - keys.start..], rows: strip.len(), row_step: 1, k_step: CHUNK },
                    b: Chunk { rows: &b[rows.start * width..], stride: width },
                    out: &mut out[j * width..],
                    out_row_step: width,
                    beta: Beta::One,
                    cols: 0..width,
                    depth: depth.clone(),
                };
                E::product(self.simd, no_flush, product);
            }
        }
    }
}
