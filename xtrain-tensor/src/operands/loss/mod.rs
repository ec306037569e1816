//! Operands and results of a loss.
pub(crate) mod blocks;

use super::samples::Samples;

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
#[derive(Debug, Clone, Copy)]
pub struct LossRows<'a> {
    /// One entry per row. `None`: the row does not contribute to the loss.
    pub targets: &'a [Option<Target>],
    /// The samples that the rows belong to.
    pub samples: &'a Samples,
    /// The logits are divided by it.
    pub temperature: f32,
    /// A row keeps its target and this many of its largest logits; of equal logits, the first. All others count as
    /// -inf. `None`: it keeps all.
    pub top_k: Option<usize>,
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
}
