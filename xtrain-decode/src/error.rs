//! The errors of the crate.
use std::borrow::Cow;
use std::fmt;

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
        want: Cow<'static, str>,
        /// The value found.
        got: String,
    },
    /// A request that the model or the engine cannot complete.
    #[error("sequence {id}: {what}")]
    Request {
        /// The sequence.
        id: u64,
        /// The expected and the found prompt, length or token.
        what: String,
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

impl Error {
    /// An option outside its range.
    pub(crate) fn option(
        field: &'static str,
        want: impl Into<Cow<'static, str>>,
        got: impl fmt::Display,
    ) -> Error {
        Error::Option { field, want: want.into(), got: got.to_string() }
    }
}

impl From<xtrain_tensor::Error> for Error {
    fn from(error: xtrain_tensor::Error) -> Error {
        Error::Model(error.into())
    }
}
