//! Why a run directory is refused.
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of using a run directory.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A run directory, or a file in it, that cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A run of that name exists already.
    Exists {
        /// Its directory.
        path: PathBuf,
    },
    /// A run, or a file of it, is not there.
    Missing {
        /// The directory or file.
        path: PathBuf,
    },
    /// A line of a log that cannot be read.
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// Data that is not what the run was trained on so far.
    Changed {
        /// The file.
        file: PathBuf,
        /// Its digest when the run began.
        want: String,
        /// Its digest now.
        got: String,
    },
    /// The system refused to read or write.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// What the system said about `path`; [`Error::Missing`] where it is not there.
    pub(super) fn io(path: &Path, source: io::Error) -> Error {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound => Error::Missing { path },
            _ => Error::Io { path, source },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Exists { path } => write!(f, "{}: a run is there already", path.display()),
            Error::Missing { path } => write!(f, "{}: no such file or directory", path.display()),
            Error::Line { path, line, what } => write!(f, "{}:{line}: {what}", path.display()),
            Error::Changed { file, want, got } => {
                write!(f, "{}: not what the run was trained on: want {want}, found {got}", file.display())
            }
            Error::Io { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
