//! The most probable tokens of a row of logits.
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::softmax::lse_row;

/// A token and its log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token id.
    pub token: u32,
    /// `x_i - lse(x)` for the logits `x` as given, as [`Choice::logprob`](super::Choice::logprob).
    pub logprob: f32,
}

/// Returns the `n` tokens with the largest logits, in descending order; those with equal logits in the order of their
/// ids. All tokens if there are fewer. No logit may be a NaN.
pub fn top_logprobs(logits: &[f32], n: usize) -> Vec<TokenLogprob> {
    if n == 0 {
        return Vec::new();
    }
    let mut top: Vec<usize> = Vec::with_capacity(n.min(logits.len()) + 1);
    for (token, &x) in logits.iter().enumerate() {
        if top.len() == n && logits[top[n - 1]] >= x {
            continue;
        }
        let reversed = faults::on(Fault::TopTokensInOtherOrder);
        let precedes = |&other: &usize| logits[other] > x || logits[other] == x && !reversed;
        top.insert(top.partition_point(precedes), token);
        top.truncate(n);
    }
    let lse = lse_row(logits);
    top.into_iter().map(|token| TokenLogprob { token: token as u32, logprob: logits[token] - lse }).collect()
}
