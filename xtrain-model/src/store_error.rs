//! The error of saving and opening models.
use std::path::PathBuf;

use crate::checkpoint::CheckpointError;
use crate::error::Error;
use crate::tokenizer::TokenizerError;

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
