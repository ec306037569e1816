//! What can go wrong in a rollout.
use std::fmt;

use crate::sampler::SampleError;

/// The result of a call on the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a rollout. `id` is the sequence's own number.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The model or the cache refused.
    Model(xtrain_model::Error),
    /// An option outside its range.
    Option {
        /// Its name.
        field: &'static str,
        /// Its range.
        want: &'static str,
        /// What was found.
        got: String,
    },
    /// A prompt without a token.
    EmptyPrompt {
        /// The sequence.
        id: u64,
    },
    /// A prompt that leaves no position for a new token.
    PromptTooLong {
        /// The sequence.
        id: u64,
        /// The most tokens of a prompt: the model's positions less one.
        want: usize,
        /// Its tokens.
        got: usize,
    },
    /// A token of a prompt that the model has no embedding for.
    Vocab {
        /// The sequence.
        id: u64,
        /// The position in the prompt.
        position: usize,
        /// The size of the vocabulary.
        want: usize,
        /// The token.
        got: u32,
    },
    /// A request for no token.
    NothingAsked {
        /// The sequence.
        id: u64,
    },
    /// A request that may grow beyond the positions that the engine was given.
    TooLong {
        /// The sequence.
        id: u64,
        /// The positions that the engine has for a sequence.
        want: usize,
        /// The positions that the request may need.
        got: usize,
    },
    /// A row of logits without a choice, or sampling options without one.
    Sample {
        /// The sequence.
        id: u64,
        /// The position of the token to be chosen.
        position: usize,
        /// Why.
        source: SampleError,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Model(e) => e.fmt(f),
            Error::Option { field, want, got } => write!(f, "{field}: want {want}, got {got:?}"),
            Error::EmptyPrompt { id } => write!(f, "sequence {id}: the prompt is empty"),
            Error::PromptTooLong { id, want, got } => {
                write!(f, "sequence {id}: the prompt has {got} tokens, want at most {want}")
            }
            Error::Vocab { id, position, want, got } => {
                write!(f, "sequence {id}: token {got} at position {position} is not below {want}")
            }
            Error::NothingAsked { id } => write!(f, "sequence {id}: want at least 1 new token, got 0"),
            Error::TooLong { id, want, got } => {
                write!(f, "sequence {id} may need {got} positions, the engine has {want}")
            }
            Error::Sample { id, position, source } => {
                write!(f, "sequence {id}, position {position}: {source}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Model(e) => Some(e),
            Error::Sample { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<xtrain_model::Error> for Error {
    fn from(e: xtrain_model::Error) -> Error {
        Error::Model(e)
    }
}
