//! The optimizer.
use super::mode::Scalar;
use super::reduce::sum32;
use crate::operands::AdamWScalars;

/// `sum32` of each row's squares.
pub(crate) fn row_squares<S: Scalar>(g: &[S], width: usize) -> impl Iterator<Item = S> {
    g.chunks_exact(width).map(move |g| sum32(width, |v, i| g[i].fma(g[i], v)))
}

/// One AdamW step of one element. Returns `(w, m, v)`.
pub(crate) fn adamw<S: Scalar>(w: S, g: S, m: S, v: S, s: &AdamWScalars, decay: f32) -> (S, S, S) {
    let [s1, s2, s3, step, c2, eps, decay] =
        [s.s1, s.s2, s.s3, s.step, s.c2, s.eps, decay].map(|x| S::of(f64::from(x)));
    let m = s1.fma(g - m, m);
    let v = s2.fma(v, s3 * (g * g));
    let w = w * decay;
    ((-step).fma(m / (v.sqrt() / c2 + eps), w), m, v)
}
