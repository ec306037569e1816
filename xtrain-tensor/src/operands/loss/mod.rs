//! Operands and results of a loss.
pub(crate) mod blocks;
mod kept;

pub use blocks::max_loss_logits;
pub use kept::KeptSet;

use super::samples::Samples;
use crate::faults::{self, Fault};

/// The target of a row and its loss weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// The target token.
    pub id: u32,
    /// The loss weight: the factor of the negative log-probability. For example 1 / (number of target tokens in the
    /// step), or an advantage.
    pub weight: f32,
    /// The factor of the row's entropy. It is subtracted from the loss whose gradient is taken, not from the reported
    /// loss.
    pub bonus: f32,
}

/// The rows of a loss.
///
/// The filters top-k, top-p and min-p act in this order on the divided logits, by the integer rule of the sampler
/// (docs/numerics.md, section 7): for equal logits and equal options, a row keeps the tokens that the sampler keeps. A
/// removed logit counts as -inf, except that of the target.
#[derive(Debug, Clone, Copy)]
pub struct LossRows<'a> {
    /// One entry per row. `None`: the row does not contribute to the loss.
    pub targets: &'a [Option<Target>],
    /// The samples that the rows belong to.
    pub samples: &'a Samples,
    /// The logits are divided by it.
    pub temperature: f32,
    /// Keeps this many of the largest logits; of equal logits, the first. At least 1. `None`: keeps all.
    pub top_k: Option<usize>,
    /// Removes the smallest probabilities that add up to at most `1 - top_p`. In (0, 1]; 1: removes none.
    pub top_p: f32,
    /// Keeps tokens with at least this fraction of the largest probability. In [0, 1]; 0: keeps all.
    pub min_p: f32,
    /// Kept sets that replace the filters, one entry per row, or empty: the filters apply to every row. `None`: the
    /// filters apply to the row. Later passes over a batch keep the sets of the weights that sampled it.
    pub kept: &'a [Option<KeptSet>],
}

impl<'a> LossRows<'a> {
    /// Rows at temperature 1 without filters.
    pub fn new(targets: &'a [Option<Target>], samples: &'a Samples) -> LossRows<'a> {
        LossRows { targets, samples, temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0, kept: &[] }
    }

    /// The given kept set of row `n`. `None`: the filters apply to it.
    pub(crate) fn kept_set(&self, n: usize) -> Option<&'a KeptSet> {
        if faults::on(Fault::GivenKeptSetIgnored) {
            return None;
        }
        self.kept.get(n)?.as_ref()
    }

    /// Whether a filter can remove one of `vocab` logits.
    pub(crate) fn filters(&self, vocab: usize) -> bool {
        self.top_k.is_some_and(|k| k < vocab) || self.top_p < 1.0 || self.min_p > 0.0
    }
}

/// The log-probability of a token under a row of logits, and the entropy of the row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LogProb {
    /// `log sum exp z`.
    pub lse: f32,
    /// `z_y - lse`.
    pub log_prob: f32,
    /// `-sum p log p`.
    pub entropy: f32,
    /// Whether the filters of the loss keep the token. The sampler cannot sample a token for which this is `false`.
    pub kept: bool,
}

/// The log-probabilities of rows, and the sets of tokens that they were computed over.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LossValues {
    /// One entry per row. `None`: the row has no target.
    pub log_probs: Vec<Option<LogProb>>,
    /// One entry per row. `None`: the row has no target, or no filter is set.
    pub kept: Vec<Option<KeptSet>>,
}
