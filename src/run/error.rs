//! Errors of run directories.
use std::io;
use std::path::{Path, PathBuf};

/// The result of using a run directory.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a run directory, or a file in it, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory of a new run already exists.
    #[error("{}: the run already exists", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// The directory of a new run exists, is not empty, and is not a run.
    #[error("{}: expected no directory, or an empty one, found one that is not empty", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// A run, or a file of it, does not exist.
    #[error("{}: no such file or directory", path.display())]
    Missing {
        /// The directory or file.
        path: PathBuf,
    },
    /// A line of a log is invalid.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The training data differs from the data that the run was started with.
    #[error("{}: differs from the data that the run was started with: expected {want}, found {got}", file.display())]
    Changed {
        /// The file.
        file: PathBuf,
        /// Its digest when the run started.
        want: String,
        /// Its digest now.
        got: String,
    },
    /// Reading or writing failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Error {
    /// An I/O error on `path`; [`Error::Missing`] if it does not exist.
    pub(super) fn io(path: &Path, source: io::Error) -> Error {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound => Error::Missing { path },
            _ => Error::Io { path, source },
        }
    }
}
