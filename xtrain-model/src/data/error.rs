//! What the data refuses.
use std::fmt;
use std::path::{Path, PathBuf};

use crate::tokenizer::TokenizerError;

/// Why data could not be prepared, opened or read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataError {
    /// The file system refused.
    Io {
        /// The file.
        file: PathBuf,
        /// What was being done to it.
        doing: &'static str,
        /// What kind of failure it is (a missing file has an exit code of its own).
        kind: std::io::ErrorKind,
        /// The system's answer.
        got: String,
    },
    /// A text file that is not text.
    NotText {
        /// The file.
        file: PathBuf,
        /// The first byte that is wrong, from the start of the file.
        offset: u64,
        /// What stands there.
        got: String,
    },
    /// A line of a JSONL file that is not what it has to be.
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What it has to be.
        want: &'static str,
        /// What it is.
        got: String,
    },
    /// A token file with a field that cannot be.
    Format {
        /// The file.
        file: PathBuf,
        /// The field of its header, or its length.
        field: &'static str,
        /// What it has to be.
        want: String,
        /// What it is.
        got: String,
    },
    /// An id that the vocabulary of its source does not have.
    Vocabulary {
        /// The file, or what else holds the tokens.
        source: String,
        /// Where the id stands, in tokens.
        at: u64,
        /// The id.
        got: u32,
        /// The vocabulary.
        vocab: u32,
    },
    /// Less data than the use of it needs.
    TooShort {
        /// What is too short.
        what: String,
        /// The tokens that it needs.
        want: u64,
        /// The tokens that it has.
        got: u64,
    },
    /// An argument outside its range.
    Argument {
        /// The operation.
        op: &'static str,
        /// What it asks for.
        want: &'static str,
        /// What it was given.
        got: String,
    },
    /// The tokenizer refused a text.
    Tokenizer {
        /// The file, or what else holds the text.
        source: String,
        /// What the tokenizer said.
        error: TokenizerError,
    },
}

impl DataError {
    pub(crate) fn io(file: &Path, doing: &'static str, error: &std::io::Error) -> DataError {
        DataError::Io { file: file.into(), doing, kind: error.kind(), got: error.to_string() }
    }

    pub(crate) fn argument(op: &'static str, want: &'static str, got: impl fmt::Display) -> DataError {
        DataError::Argument { op, want, got: got.to_string() }
    }
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataError::Io { file, doing, got, .. } => write!(f, "{}: cannot {doing}: {got}", file.display()),
            DataError::NotText { file, offset, got } => {
                write!(f, "{}: want UTF-8 text, found {got} at byte {offset}", file.display())
            }
            DataError::Line { file, line, want, got } => {
                write!(f, "{}: line {line}: want {want}, found {got}", file.display())
            }
            DataError::Format { file, field, want, got } => {
                write!(f, "{}: {field}: want {want}, found {got}", file.display())
            }
            DataError::Vocabulary { source, at, got, vocab } => {
                write!(f, "{source}: token {at} is {got}, the vocabulary ends at {vocab}")
            }
            DataError::TooShort { what, want, got } => {
                write!(f, "{what}: want at least {want} tokens, found {got}")
            }
            DataError::Argument { op, want, got } => write!(f, "{op}: want {want}, got {got}"),
            DataError::Tokenizer { source, error } => write!(f, "{source}: {error}"),
        }
    }
}

impl std::error::Error for DataError {}
