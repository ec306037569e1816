//! Operands and results of sampling.
use std::fmt;

use super::weight::Weight;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::tensor::Tensor;

/// The sampling options of one row, and the address of its random number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRow<'a> {
    /// The seed of the run.
    pub seed: u64,
    /// The id of the sequence.
    pub id: u64,
    /// The position of the sampled token.
    pub position: u32,
    /// Softmax temperature, finite and at least 0. 0 = greedy.
    pub temperature: f32,
    /// Keeps this many of the largest logits. 0: no limit.
    pub top_k: u32,
    /// Removes the smallest probabilities that add up to at most `1 - top_p`. In (0, 1]; 1: no limit.
    pub top_p: f32,
    /// Keeps tokens with at least this fraction of the largest probability. In [0, 1]; 0: no limit.
    pub min_p: f32,
    /// Repetition penalty: divides positive logits of seen ids and multiplies the other logits of seen ids. Finite
    /// and above 0; 1: no penalty.
    pub penalty: f32,
    /// The ids of the prompt and of the tokens sampled so far, in any order.
    pub seen: &'a [u32],
}

/// A sampled token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// `x_y - lse(x)`, where x are the logits as given.
    pub log_prob: f32,
    /// `z_y - lse(z)`, where z are the logits after penalty, temperature and filters. 0 at temperature 0.
    pub processed: f32,
}

/// The reason why a row has no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleFailure {
    /// A logit is a NaN or +inf.
    #[error("a logit is a NaN or +inf")]
    NotFinite,
    /// Every logit is -inf.
    #[error("every logit is -inf")]
    NothingLeft,
    /// Penalty and temperature drive the largest logit out of range.
    #[error("penalty and temperature drive the largest logit out of range")]
    Overflow,
}

/// A sampled token, or the reason why a row has none.
pub type Outcome = std::result::Result<Sampled, SampleFailure>;

/// Index lists per step and per operation: `[step][list][row]`.
pub type StepLists = Vec<Vec<Vec<u32>>>;

/// Maximum number of index lists per step.
pub(crate) const MAX_LISTS: usize = 2;

/// The part of a [`DeviceSampler`](crate::ops::DeviceSampler) that a backend implements. Arguments have been checked.
pub(crate) trait SampleRing: fmt::Debug + Send {
    /// Sets the last token of each row, and stages the index lists of the following steps.
    fn stage(&mut self, tokens: &[u32], lists: StepLists) -> Result<()>;

    /// The rows of the f32 table `w [V, C]` for the last tokens (below `V`), rounded if `dtype` is bf16.
    fn embedding(&self, w: &Tensor, dtype: Dtype) -> Result<Tensor>;

    /// [`SampleRing::embedding`] of a packed table.
    fn weight_rows(&self, w: &Weight) -> Result<Tensor>;

    /// Samples a token for each row of `logits [N, V]`, N at least 1.
    fn sample(&mut self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()>;

    /// Waits for the device and returns the outcomes of all steps since [`SampleRing::stage`], in order.
    fn read_back(&mut self) -> Result<Vec<Vec<Outcome>>>;
}
