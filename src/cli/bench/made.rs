//! A checkpoint of random weights that is there to be opened once.
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Shared;
use super::subject;
use crate::cli::{CliError, Exit};
use crate::model::export::{self, Subject};
use crate::model::gguf::Quant;

/// A Hugging Face directory in bf16 under the system's temporary directory, removed when this is dropped.
#[derive(Debug)]
pub(super) struct Made {
    above: PathBuf,
    pub(super) path: PathBuf,
}

impl Made {
    /// Runs this command line again with `--make`, so that nothing of making the checkpoint is left in this process.
    ///
    /// # Errors
    /// The checkpoint cannot be made there.
    pub(super) fn new() -> Result<Made, CliError> {
        let above = fresh()?;
        let io = |error| CliError::io(&above, &error);
        let made = Made { path: above.join("model"), above: above.clone() };
        let mut again = Command::new(std::env::current_exe().map_err(io)?);
        let done =
            again.args(std::env::args_os().skip(1)).arg("--make").arg(&made.path).output().map_err(io)?;
        if done.status.success() {
            return Ok(made);
        }
        let said = String::from_utf8_lossy(&done.stderr);
        let said = said.trim().trim_start_matches("error: ");
        Err(CliError::new(Exit::Io, format_args!("{}: no random checkpoint: {said}", made.path.display())))
    }
}

/// A directory that was not there before.
fn fresh() -> Result<PathBuf, CliError> {
    let mut number = 0;
    loop {
        let name = format!("xtrain-bench-load-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(CliError::io(&path, &error)),
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.above);
    }
}

/// Writes random weights of the configured sizes.
///
/// # Errors
/// A configuration that no model has; the file system.
pub(super) fn write(out: &Path, shared: &Shared) -> Result<(), CliError> {
    let (model, _) = subject::open(None, shared, 1)?;
    Ok(export::huggingface(
        out,
        &Subject { model: &model, tokenizer: None, eos: &[] },
        (Quant::BF16, export::MAX_SHARD),
    )?)
}
