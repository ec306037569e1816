//! Errors of reading a configuration.
use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use crate::model::data::DataError;

/// The result of reading a configuration.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a configuration was refused. `place` is `FILE:LINE`, or the flag as it was typed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file is not UTF-8 text.
    #[error(transparent)]
    NotText(DataError),
    /// The text is not valid TOML.
    #[error("{place}: {reason}")]
    Syntax {
        /// Location of the error.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// No section has this key.
    #[error("{place}: unknown key `{key}`{}", did_you_mean(nearest.as_deref(), '`'))]
    UnknownKey {
        /// Location of the key.
        place: String,
        /// The key, with its section.
        key: String,
        /// A known key with a similar spelling, or what nanoGPT and Hugging Face call so.
        nearest: Option<String>,
    },
    /// The value has the wrong type for its key.
    #[error("{place}: `{key}`: expected {want}, found {got}")]
    WrongType {
        /// Location of the key.
        place: String,
        /// The key, with its section.
        key: String,
        /// The expected type.
        want: &'static str,
        /// The value.
        got: String,
    },
    /// The value is not one of the names that the key accepts.
    #[error("{place}: `{key}`: expected one of {want}, found \"{got}\"{}", did_you_mean(nearest.as_deref(), '"'))]
    UnknownName {
        /// Location of the key.
        place: String,
        /// The key, with its section.
        key: String,
        /// The value.
        got: String,
        /// The accepted names.
        want: String,
        /// An accepted name with a similar spelling.
        nearest: Option<String>,
    },
    /// The value is out of range or contradicts another key.
    #[error("{}`{key}` = {got}: expected {want}", place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default())]
    Invalid {
        /// Location of the key. `None`: no file sets it.
        place: Option<String>,
        /// The key, with its section.
        key: &'static str,
        /// The value.
        got: String,
        /// The accepted values.
        want: String,
    },
}

/// The end of a message that suggests a name.
fn did_you_mean(nearest: Option<&str>, quote: char) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean {quote}{name}{quote}?"))
}

/// An error that names the key unless the condition holds.
pub(super) fn require(
    holds: bool,
    key: &'static str,
    got: impl Display,
    want: impl Into<String>,
) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(Error::Invalid { place: None, key, got: got.to_string(), want: want.into() })
    }
}
