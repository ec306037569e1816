//! What a tokenizer refuses.
use std::fmt;
use std::path::PathBuf;

/// Why a tokenizer could not be loaded, trained, saved or used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file system refused.
    Io {
        /// The file.
        file: PathBuf,
        /// What was being done to it.
        doing: &'static str,
        /// The system's answer.
        got: String,
    },
    /// A file that is not a tokenizer this crate can use.
    Format {
        /// The file.
        file: PathBuf,
        /// What it has to hold.
        want: String,
        /// What it holds.
        got: String,
    },
    /// An argument outside its range.
    Argument {
        /// The operation.
        op: &'static str,
        /// What it asks for.
        want: String,
        /// What it was given.
        got: String,
    },
    /// The tokenizer's own code gave up on a text.
    Encode {
        /// What it said.
        got: String,
    },
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenizerError::Io { file, doing, got } => write!(f, "{}: cannot {doing}: {got}", file.display()),
            TokenizerError::Format { file, want, got } => {
                write!(f, "{}: want {want}, found {got}", file.display())
            }
            TokenizerError::Argument { op, want, got } => write!(f, "{op}: want {want}, got {got}"),
            TokenizerError::Encode { got } => write!(f, "the tokenizer could not encode the text: {got}"),
        }
    }
}

impl std::error::Error for TokenizerError {}
