//! The error of training data.
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;

use crate::tokenizer::TokenizerError;

/// Why data could not be prepared, opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// An operating system call failed.
    #[error("{}: cannot {op}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operation: open, read, write, ...
        op: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// A text file that is not UTF-8 text.
    #[error("{}: expected UTF-8 text, found {} at byte {offset}", place(file, *line), described(*byte))]
    NotText {
        /// The file.
        file: PathBuf,
        /// The line number of a JSONL file, from 1.
        line: Option<u64>,
        /// The offset of the first invalid byte in the line, or in the file.
        offset: u64,
        /// The byte. Zero: the file is probably binary.
        byte: u8,
    },
    /// A text file without a byte.
    #[error("{}: expected text, found an empty file", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// An invalid line of a JSONL file.
    #[error("{}:{line}: expected {want}, found {got}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line number, from 1.
        line: u64,
        /// What the line must contain.
        want: &'static str,
        /// What it contains.
        got: String,
    },
    /// A token file with an invalid field.
    #[error("{}: {field}: expected {want}, found {got}", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// The field of the header, or the length of the file.
        field: &'static str,
        /// The valid values.
        want: String,
        /// The value found.
        got: String,
    },
    /// A token id outside the vocabulary.
    #[error("{origin}: token {at} is {got}, expected an id below {vocab}")]
    Vocabulary {
        /// The file, or a description of other tokens.
        origin: String,
        /// The index of the token.
        at: u64,
        /// The id.
        got: u32,
        /// The vocabulary size.
        vocab: u32,
    },
    /// Not enough data.
    #[error("{what}: expected at least {want} tokens, found {got}")]
    TooShort {
        /// The data.
        what: String,
        /// The minimum number of tokens.
        want: u64,
        /// The number of tokens found.
        got: u64,
    },
    /// No document has a token to train on.
    #[error(
        "the training data: expected a document with a target after its first token and within the first {context} \
         predictions, found {}", without_target(*documents)
    )]
    NoTargets {
        /// The number of documents.
        documents: u64,
        /// The maximum number of predictions per window.
        context: u64,
    },
    /// An argument outside its range.
    #[error("{op}: expected {want}, found {got}")]
    Argument {
        /// The operation.
        op: &'static str,
        /// The valid values.
        want: &'static str,
        /// The value found.
        got: String,
    },
    /// The tokenizer could not encode a text.
    #[error("{origin}: {source}")]
    Tokenizer {
        /// The file, or a description of another text.
        origin: String,
        /// The tokenizer's error.
        source: TokenizerError,
    },
}

/// The words for documents without a target.
fn without_target(documents: u64) -> String {
    match documents {
        0 => "no document".into(),
        1 => "1 document without one".into(),
        n => format!("{n} documents without one"),
    }
}

/// A file, with the number of a line.
fn place(file: &Path, line: Option<u64>) -> String {
    let line = line.map(|line| format!(":{line}")).unwrap_or_default();
    format!("{}{line}", file.display())
}

/// A byte that is no text, in words.
fn described(byte: u8) -> String {
    if byte == 0 { "a zero byte (a binary file?)".to_string() } else { format!("byte 0x{byte:02x}") }
}

impl DataError {
    /// The error for the content of a file that is not UTF-8. It names the first invalid byte, or a zero byte before
    /// it.
    pub fn not_text(file: &Path, error: &FromUtf8Error) -> DataError {
        let (bytes, invalid) = (error.as_bytes(), error.utf8_error().valid_up_to());
        let at = bytes[..invalid].iter().position(|&byte| byte == 0).unwrap_or(invalid);
        DataError::NotText { file: file.into(), line: None, offset: at as u64, byte: bytes[at] }
    }

    /// Converts an I/O error of operation `op` on `file`.
    pub(crate) fn io(file: &Path, op: &'static str, source: io::Error) -> DataError {
        DataError::Io { file: file.into(), op, source }
    }

    /// The error for an argument outside its range.
    pub(crate) fn argument(op: &'static str, want: &'static str, got: impl Display) -> DataError {
        DataError::Argument { op, want, got: got.to_string() }
    }
}
