//! The two reductions of docs/numerics.md, section 2, and `lse`.
use super::mode::{Mode, Scalar};

/// Order 1: `y + sum_k a(k) b(k)`. Chunks of `M::CHUNK` start from +0 and are added in ascending order.
pub(crate) fn dot<M: Mode>(
    mut y: M::S,
    len: usize,
    a: impl Fn(usize) -> M::S,
    b: impl Fn(usize) -> M::S,
) -> M::S {
    for start in (0..len).step_by(M::CHUNK) {
        let n = M::CHUNK.min(len - start);
        y = M::add(y, M::chunk(n, |k| a(start + k), |k| b(start + k)));
    }
    y
}

/// Order 2: 32 lanes from +0; lane t takes elements t, t + 32, ... in ascending order by `step(v, i)`. Then the
/// butterfly 16, 8, 4, 2, 1, then + 0.
pub(crate) fn sum32<S: Scalar>(len: usize, step: impl Fn(S, usize) -> S) -> S {
    let mut v = [S::ZERO; 32];
    for i in 0..len {
        v[i % 32] = step(v[i % 32], i);
    }
    for o in [16, 8, 4, 2, 1] {
        let w = v;
        for t in 0..32 {
            v[t] = w[t] + w[t ^ o];
        }
    }
    v[0] + S::ZERO
}

/// `log sum exp z` over chunks of 128: a maximum and a sum32 per chunk, then one sum32 over the chunks.
pub(crate) fn lse<S: Scalar>(z: &[S]) -> S {
    let parts: Vec<(S, S)> = z
        .chunks(128)
        .map(|z| {
            let m = z.iter().fold(S::NEG_INFINITY, |m, &x| m.max(x));
            let l = match m == S::NEG_INFINITY {
                // without a maximum, what is not -inf is a NaN
                true => z.iter().copied().find(|&z| z != S::NEG_INFINITY).unwrap_or(S::ZERO),
                false => sum32(z.len(), |v, i| v + (z[i] - m).exp()),
            };
            (m, l)
        })
        .collect();
    let m = parts.iter().fold(S::NEG_INFINITY, |m, p| m.max(p.0));
    m + sum32(parts.len(), |v: S, c| parts[c].1.fma((parts[c].0 - m).exp(), v)).log()
}
