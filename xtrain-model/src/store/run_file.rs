//! Further files of a run that its checkpoints contain.
use std::path::{Path, PathBuf};

use crate::checkpoint::{RealFs, newest_file};
use crate::store_error::StoreError;

/// A file of the newest checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFile {
    /// Its path.
    pub path: PathBuf,
    /// Its content, verified against the manifest.
    pub bytes: Vec<u8>,
}

/// The file `name` of the newest checkpoint of a run whose manifest and file are valid. Reads no tensor. `None`: the
/// checkpoint has no such file.
///
/// # Errors
/// As [`super::describe`].
pub fn run_file(run: &Path, name: &str) -> Result<Option<RunFile>, StoreError> {
    let found = newest_file(&RealFs, run, name)?;
    Ok(found.map(|(path, bytes)| RunFile { path, bytes }))
}
