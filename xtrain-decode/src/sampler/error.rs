//! What the sampler refuses.
use std::fmt;

/// Why there is no choice.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum SampleError {
    /// An option outside its range.
    Option {
        /// Its name.
        field: &'static str,
        /// Its range.
        want: &'static str,
        /// What was found.
        got: String,
    },
    /// A row of no logits, or of more than [`Sampler::MAX_VOCAB`](super::Sampler::MAX_VOCAB).
    Vocab {
        /// The logits in the row.
        got: usize,
    },
    /// A logit that is a NaN or +inf.
    NotFinite {
        /// Its token.
        token: usize,
        /// The logit.
        got: f32,
    },
    /// A row whose logits are all -inf: nothing can be chosen.
    NothingLeft,
    /// An id in the history that the row has no logit for.
    History {
        /// Its place in the history.
        at: usize,
        /// The id.
        got: u32,
        /// The logits in the row.
        vocab: usize,
    },
    /// A row whose largest logit leaves the range of f32 under penalty and temperature.
    Overflow {
        /// What it became.
        got: f32,
    },
}

impl fmt::Display for SampleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SampleError::Option { field, want, got } => write!(f, "{field}: want {want}, got {got}"),
            SampleError::Vocab { got } => write!(f, "sampler: want 1..=524288 logits, got {got}"),
            SampleError::NotFinite { token, got } => {
                write!(f, "sampler: the logit of token {token} is {got}, want a finite one or -inf")
            }
            SampleError::NothingLeft => write!(f, "sampler: every logit is -inf"),
            SampleError::History { at, got, vocab } => {
                write!(f, "sampler: history holds id {got} at index {at}, want ids below {vocab}")
            }
            SampleError::Overflow { got } => {
                write!(f, "sampler: penalty and temperature drive the largest logit to {got}")
            }
        }
    }
}

impl std::error::Error for SampleError {}
