//! Why a configuration is refused.
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The result of reading a configuration.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refused configuration. `place` is `FILE:LINE` or the flag as it was typed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Text that is not TOML.
    Syntax {
        /// Where it stands.
        place: String,
        /// What is wrong with it.
        what: String,
    },
    /// A key that no section has.
    UnknownKey {
        /// Where it stands.
        place: String,
        /// The key, with its section.
        key: String,
        /// The known key that is spelt most like it.
        nearest: String,
    },
    /// A value of another type than its key's.
    WrongType {
        /// Where it stands.
        place: String,
        /// The key, with its section.
        key: String,
        /// The type that the key has.
        want: &'static str,
        /// The value.
        got: String,
    },
    /// A name that is not one of those its key accepts.
    UnknownName {
        /// Where it stands.
        place: String,
        /// The key, with its section.
        key: String,
        /// The name.
        got: String,
        /// The names that the key accepts.
        want: String,
        /// The accepted name that is spelt most like it.
        nearest: String,
    },
    /// A value that no run can use.
    Invalid {
        /// The key, with its section.
        key: &'static str,
        /// The value.
        got: String,
        /// What it has to be.
        want: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Read { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Syntax { place, what } => write!(f, "{place}: {what}"),
            Error::UnknownKey { place, key, nearest } => {
                write!(f, "{place}: unknown key `{key}`; the nearest key is `{nearest}`")
            }
            Error::WrongType { place, key, want, got } => {
                write!(f, "{place}: `{key}` expects {want}, found {got}")
            }
            Error::UnknownName { place, key, got, want, nearest } => {
                write!(f, "{place}: `{key}` is one of {want}, found \"{got}\"; the nearest is \"{nearest}\"")
            }
            Error::Invalid { key, got, want } => write!(f, "`{key}` = {got}: expected {want}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Read { source, .. } => Some(source),
            _ => None,
        }
    }
}
