//! The errors of the sampler.
use thiserror::Error;

/// Why no token can be sampled.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum SampleError {
    /// An option outside its range.
    #[error("{field}: expected {want}, found {got}")]
    Option {
        /// The field of [`SampleOptions`](crate::SampleOptions).
        field: &'static str,
        /// The expected range.
        want: &'static str,
        /// The value found.
        got: String,
    },
    /// A row without logits, or with more than [`Sampler::MAX_VOCAB`](crate::sampler::Sampler::MAX_VOCAB).
    #[error("sampler: expected 1..=524288 logits, found {got}")]
    Vocab {
        /// Number of logits in the row.
        got: usize,
    },
    /// A logit that is NaN or +inf.
    #[error("sampler: logit of token {token}: expected a finite value or -inf, found {got}")]
    NotFinite {
        /// The token.
        token: usize,
        /// The logit.
        got: f32,
    },
    /// A row whose logits are all -inf: no token can be sampled.
    #[error("sampler: expected at least one logit above -inf, found none")]
    NothingLeft,
    /// A constraint that allows no token with a logit above -inf.
    #[error(
        "sampler: the constraint allows no token: none of the vocabulary continues the text, or their logits are -inf"
    )]
    NothingAllowed,
    /// A constraint whose allowed tokens cannot be computed.
    #[error("constraint: {what}")]
    Constraint {
        /// The cause.
        what: String,
    },
    /// An id in the history that the row has no logit for.
    #[error("sampler: history at index {at}: expected an id below {vocab}, found {got}")]
    History {
        /// The index in the history.
        at: usize,
        /// The id.
        got: u32,
        /// Number of logits in the row.
        vocab: usize,
    },
    /// A row whose largest logit leaves the range of f32 after penalty and temperature.
    #[error("sampler: largest logit after penalty and temperature: expected a finite value, found {got}")]
    Overflow {
        /// The logit after penalty and temperature.
        got: f32,
    },
}
