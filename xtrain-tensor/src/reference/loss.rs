//! Log-probabilities and the gradient of a weighted log-probability.
use super::mode::Scalar;
use super::reduce::{lse, sum32};

/// Log-sum-exp, log-probability and entropy of one row of logits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowLoss<S> {
    /// `log sum exp z`.
    pub(crate) lse: S,
    /// `z_y - lse`.
    pub(crate) log_prob: S,
    /// `-sum p log p`.
    pub(crate) entropy: S,
}

/// Computes `lse`, the log-probability of `target` and the entropy of one row `z`.
pub(crate) fn log_prob<S: Scalar>(z: &[S], target: usize) -> RowLoss<S> {
    let lse = lse(z);
    let entropy = z.chunks(128).fold(S::ZERO, |h, z| {
        let term = |v: S, i: usize| match z[i] == S::NEG_INFINITY {
            true => v,
            false => (z[i] - lse).exp().fma(lse - z[i], v),
        };
        h + sum32(z.len(), term)
    });
    RowLoss { lse, log_prob: z[target] - lse, entropy }
}

/// Returns `dz` of `-weight log p(target) - bonus * entropy` for one row `z = x / T`, divided by `temperature`.
///
/// `dz_i = exp(z_i - lse) w` with the weight w, at the target `(exp(z_y - lse) - 1) w`; a bonus `b` adds `b (p_i ((z_i - lse) + H))`.
///
/// `target`: index in `z`. `None`: the target is not among these logits.
pub(crate) fn dlogits<S: Scalar>(
    z: &[S],
    target: Option<usize>,
    row: RowLoss<S>,
    weight: S,
    bonus: S,
    temperature: S,
) -> Vec<S> {
    let dz = |(i, &z): (usize, &S)| {
        if z == S::NEG_INFINITY {
            return S::ZERO;
        }
        let p = (z - row.lse).exp();
        let dz = if Some(i) == target { (p - S::ONE) * weight } else { p * weight };
        let dz = if bonus == S::ZERO { dz } else { dz + bonus * (p * ((z - row.lse) + row.entropy)) };
        dz / temperature
    };
    z.iter().enumerate().map(dz).collect()
}
