//! A checkpoint of random weights that is there to be opened once.
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
        let above = std::env::temp_dir().join(format!("xtrain-bench-load-{}", std::process::id()));
        let io = |error| CliError::io(&above, &error);
        std::fs::create_dir(&above).map_err(io)?;
        let made = Made { path: above.join("model"), above: above.clone() };
        let mut again = Command::new(std::env::current_exe().map_err(io)?);
        let done =
            again.args(std::env::args_os().skip(1)).arg("--make").arg(&made.path).output().map_err(io)?;
        if done.status.success() {
            return Ok(made);
        }
        let said = String::from_utf8_lossy(&done.stderr);
        let said = said.lines().next().unwrap_or("it ended early").trim_start_matches("error: ");
        Err(CliError::new(Exit::Io, format_args!("{}: no random checkpoint: {said}", made.path.display())))
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
    Ok(export::huggingface(out, &Subject { model: &model, tokenizer: None, eos: &[] }, Quant::BF16)?)
}
