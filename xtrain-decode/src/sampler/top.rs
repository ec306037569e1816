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

/// For more tokens than these, all are sorted.
const FEW: usize = 64;

/// Returns the `n` tokens with the largest logits, in descending order; those with equal logits in the order of their
/// ids. Fewer if fewer logits are above -inf. No logit may be a NaN.
pub fn top_logprobs(logits: &[f32], n: usize) -> Vec<TokenLogprob> {
    if n == 0 {
        return Vec::new();
    }
    let mut top = if n <= FEW { inserted(logits, n) } else { sorted(logits) };
    top.truncate(n);
    top.retain(|&token| logits[token] > f32::NEG_INFINITY);
    let lse = lse_row(logits);
    top.into_iter().map(|token| TokenLogprob { token: token as u32, logprob: logits[token] - lse }).collect()
}

/// The `n` most probable tokens, by insertion into a sorted list.
fn inserted(logits: &[f32], n: usize) -> Vec<usize> {
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
    top
}

/// All tokens.
fn sorted(logits: &[f32]) -> Vec<usize> {
    let mut all: Vec<usize> = (0..logits.len()).collect();
    all.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).expect("no logit is a NaN"));
    all
}
