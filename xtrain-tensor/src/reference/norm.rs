//! RMSNorm.
use super::mode::{Mode, Scalar};
use super::reduce::{dot, sum32};
use crate::ops::Samples;

/// `r = 1 / sqrt(sum32(x²) / C + eps)`.
fn rrms<S: Scalar>(x: &[S], eps: S) -> S {
    let sum = sum32(x.len(), |v, i| x[i].fma(x[i], v));
    S::ONE / (sum / S::of(x.len() as f64) + eps).sqrt()
}

/// `y_i = (x_i r) w_i`.
pub(crate) fn rms_norm<S: Scalar>(x: &[S], w: &[S], eps: S) -> Vec<S> {
    let row = |x: &[S]| {
        let r = rrms(x, eps);
        x.iter().zip(w).map(|(&x, &w)| (x * r) * w).collect::<Vec<S>>()
    };
    x.chunks_exact(w.len()).flat_map(row).collect()
}

/// Returns `dx`; `dw += rowsum dy xh`. `M` must be a mode with the f32 rule.
pub(crate) fn rms_norm_backward<M: Mode>(
    x: &[M::S],
    w: &[M::S],
    dy: &[M::S],
    eps: M::S,
    dw: &mut [M::S],
    samples: &Samples,
) -> Vec<M::S> {
    let c = w.len();
    let mut dx = Vec::with_capacity(x.len());
    let mut xh = Vec::with_capacity(x.len());
    for (x, dy) in x.chunks_exact(c).zip(dy.chunks_exact(c)) {
        let r = rrms(x, eps);
        let h: Vec<M::S> = x.iter().map(|&x| x * r).collect();
        let e: Vec<M::S> = dy.iter().zip(w).map(|(&d, &w)| d * w).collect();
        let t = sum32(c, |v, i| e[i].fma(h[i], v)) / M::S::of(c as f64);
        dx.extend((0..c).map(|i| (-h[i]).fma(t, e[i]) * r));
        xh.extend(h);
    }
    for rows in samples.ranges() {
        for (i, dw) in dw.iter_mut().enumerate() {
            *dw =
                dot::<M>(*dw, rows.len(), |n| dy[(rows.start + n) * c + i], |n| xh[(rows.start + n) * c + i]);
        }
    }
    dx
}
