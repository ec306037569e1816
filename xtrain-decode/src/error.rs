//! The errors of the crate.
use thiserror::Error;

use crate::sampler::SampleError;

/// The result of a call on the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The errors of a rollout. `id` is the sequence id.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the model or of the cache.
    #[error("{0}")]
    Model(#[from] xtrain_model::Error),
    /// An option outside its range.
    #[error("{field}: expected {want}, found {got}")]
    Option {
        /// The field.
        field: &'static str,
        /// The expected range.
        want: &'static str,
        /// The value found.
        got: String,
    },
    /// A prompt without tokens.
    #[error("sequence {id}: the prompt is empty, expected at least 1 token")]
    EmptyPrompt {
        /// The sequence.
        id: u64,
    },
    /// A prompt that leaves no position for a new token.
    #[error("sequence {id}: expected a prompt of at most {want} tokens, found {got}")]
    PromptTooLong {
        /// The sequence.
        id: u64,
        /// Maximum number of prompt tokens: the model's maximum number of positions - 1.
        want: usize,
        /// Number of prompt tokens.
        got: usize,
    },
    /// A prompt token outside the vocabulary.
    #[error("sequence {id}: prompt position {position}: expected a token id below {want}, found {got}")]
    Vocab {
        /// The sequence.
        id: u64,
        /// The position in the prompt.
        position: usize,
        /// Size of the vocabulary.
        want: usize,
        /// The token.
        got: u32,
    },
    /// A request for 0 new tokens.
    #[error("sequence {id}: expected at least 1 new token, found 0")]
    NoNewTokens {
        /// The sequence.
        id: u64,
    },
    /// A request that may need more positions than the engine has for a sequence.
    #[error("sequence {id}: expected at most {want} positions for prompt and new tokens, found {got}")]
    TooLong {
        /// The sequence.
        id: u64,
        /// Positions that the engine has for a sequence.
        want: usize,
        /// Positions that the request may need.
        got: usize,
    },
    /// No token can be sampled, or a sampling option is outside its range.
    #[error("sequence {id}, position {position}: {source}")]
    Sample {
        /// The sequence.
        id: u64,
        /// The position of the token.
        position: usize,
        /// The cause.
        source: SampleError,
    },
}

impl From<xtrain_tensor::Error> for Error {
    fn from(error: xtrain_tensor::Error) -> Error {
        Error::Model(error.into())
    }
}
