//! The error of saving and opening models.
use std::path::PathBuf;

use crate::checkpoint::CheckpointError;
use crate::error::Error;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// A tokenizer, or the reason why its kind is not supported. Neither: the model has none.
pub(crate) type FoundTokenizer = (Option<Tokenizer>, Option<TokenizerError>);

/// Separates an unsupported kind of tokenizer, whose model can be used with token ids, from other errors.
pub(crate) fn found(read: Result<Option<Tokenizer>, StoreError>) -> Result<FoundTokenizer, StoreError> {
    match read {
        Err(StoreError::Tokenizer(reason @ TokenizerError::Unsupported { .. })) => Ok((None, Some(reason))),
        read => Ok((read?, None)),
    }
}

/// Why a model could not be saved or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file of the checkpoint, the weights or the GGUF model.
    #[error("{0}")]
    Checkpoint(#[from] CheckpointError),
    /// The model's config or tensors.
    #[error("{0}")]
    Model(#[from] Error),
    /// The tokenizer.
    #[error("{0}")]
    Tokenizer(#[from] TokenizerError),
    /// A checkpoint that cannot be resumed.
    #[error("{}: cannot be resumed: {what}", path.display())]
    NotATrainer {
        /// The checkpoint directory.
        path: PathBuf,
        /// What is missing.
        what: String,
    },
}
