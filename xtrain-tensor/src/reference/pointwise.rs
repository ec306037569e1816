//! Operations on single elements or on pairs of elements.
use super::mode::Scalar;

/// Rotates pairs `(x1, x2)`: `y1 = fma(x1, c, -(x2 s))`, `y2 = fma(x2, c, x1 s)`.
pub(crate) fn rotate<S: Scalar>(head: &mut [S], cos: &[S], sin: &[S]) {
    let (a, b) = head.split_at_mut(cos.len());
    for i in 0..cos.len() {
        let (x1, x2, c, s) = (a[i], b[i], cos[i], sin[i]);
        (a[i], b[i]) = (x1.fma(c, -(x2 * s)), x2.fma(c, x1 * s));
    }
}

/// Rotates pairs `(dy1, dy2)` backward: `dx1 = fma(dy1, c, dy2 s)`, `dx2 = fma(dy2, c, -(dy1 s))`.
pub(crate) fn rotate_back<S: Scalar>(head: &mut [S], cos: &[S], sin: &[S]) {
    let (a, b) = head.split_at_mut(cos.len());
    for i in 0..cos.len() {
        let (d1, d2, c, s) = (a[i], b[i], cos[i], sin[i]);
        (a[i], b[i]) = (d1.fma(c, d2 * s), d2.fma(c, -(d1 * s)));
    }
}

/// `(g / (1 + exp(-g))) u`.
pub(crate) fn silu_mul<S: Scalar>(g: S, u: S) -> S {
    (g / (S::ONE + (-g).exp())) * u
}

/// `(dg, du)`: `q = 1 / (1 + exp(-g))`; `dg = (dy u) (q fma(g, 1 - q, 1))`; `du = dy (g q)`.
pub(crate) fn silu_mul_backward<S: Scalar>(g: S, u: S, dy: S) -> (S, S) {
    let q = S::ONE / (S::ONE + (-g).exp());
    ((dy * u) * (q * g.fma(S::ONE - q, S::ONE)), dy * (g * q))
}
