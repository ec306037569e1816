//! Log-probabilities of given tokens, and the entropy of each row.
use super::checks::{check_index, misfit};
use crate::dispatch::backend;
use crate::error::{Error, Result};
use crate::operands::LogProb;
use crate::tensor::Tensor;

/// The log-probability of `target[n]` under row `n` of `logits [N, V]` (f32), and the row's entropy.
///
/// Order: `lse` and entropy over chunks of 128 logits, each *sum32* (docs/numerics.md, section 3).
///
/// The losses compute the same values without keeping all logits. This operation takes the logits, for comparison with
/// the independent implementations (`U/lse` in tests/data/golden_bits).
///
/// # Errors
/// [`Error::Shape`] unless there is a target for each row, [`Error::Index`] for a target outside the vocabulary.
pub fn log_prob(logits: &Tensor, target: &[u32]) -> Result<Vec<LogProb>> {
    let &[n, v] = logits.shape() else {
        return Err(misfit("log_prob", "logits [N, V]", &[logits]));
    };
    if n != target.len() {
        let got = vec![vec![n, v], vec![target.len()]];
        return Err(Error::Shape { op: "log_prob", want: "a target for each row", got });
    }
    check_index("log_prob", "target", v, target)?;
    backend(logits.device()).log_prob(logits, target)
}
