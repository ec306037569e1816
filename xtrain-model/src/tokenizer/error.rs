//! The error of tokenizers.
use std::io;
use std::path::PathBuf;

/// Why a tokenizer could not be loaded, trained, saved or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// An operating system call failed.
    #[error("{}: cannot {op}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operation: open, read, write.
        op: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file that is not a supported tokenizer.
    #[error("{}: expected {want}, found {got}", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// What the file must contain.
        want: String,
        /// What it contains.
        got: String,
    },
    /// A tokenizer of another kind. Its model can be used with token ids.
    #[error("{}: tokenizer not supported: expected {want}, found {got}", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The supported kinds.
        want: String,
        /// The kind of the tokenizer.
        got: String,
    },
    /// An argument outside its range.
    #[error("{op}: expected {want}, found {got}")]
    Argument {
        /// The operation.
        op: &'static str,
        /// The valid values.
        want: String,
        /// The value found.
        got: String,
    },
    /// The `tokenizers` crate could not encode a text.
    #[error("the tokenizer could not encode the text: {got}")]
    Encode {
        /// The message of the crate.
        got: String,
    },
}
