//! The optimizer.
use super::mode::Scalar;
use super::reduce::sum32;
use crate::ops::AdamWScalars;

/// `sum32` of each row's squares, then `sum32` over the rows' sums.
pub(crate) fn sum_of_squares<S: Scalar>(g: &[S], width: usize) -> S {
    let rows: Vec<S> = g.chunks_exact(width).map(|g| sum32(width, |v, i| g[i].fma(g[i], v))).collect();
    sum32(rows.len(), |v, i| v + rows[i])
}

/// One AdamW step of one element: returns `(w, m, v)`.
pub(crate) fn adamw([w, g, m, v]: [f32; 4], s: &AdamWScalars, decay: f32) -> (f32, f32, f32) {
    let m = s.s1.mul_add(g - m, m);
    let v = s.s2.mul_add(v, s.s3 * (g * g));
    let w = w * decay;
    ((-s.step).mul_add(m / (v.sqrt() / s.c2 + s.eps), w), m, v)
}
