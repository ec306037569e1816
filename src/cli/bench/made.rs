//! A checkpoint of random weights that is there to be opened once.
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::Shared;
use super::subject;
use crate::cli::interrupt::Interrupt;
use crate::cli::{CliError, Exit};
use crate::model::export::{self, ExportSource};
use crate::model::gguf::Quant;

/// A Hugging Face directory in bf16 under the system's temporary directory, removed when this is dropped. One signal
/// lets it be dropped; a second ends the process at once.
#[derive(Debug)]
pub(super) struct Made {
    above: PathBuf,
    pub(super) path: PathBuf,
}

impl Made {
    /// Runs this command line again with `--make`, so that nothing of making the checkpoint is left in this process.
    ///
    /// # Errors
    /// What the command line made again ends with; a signal.
    pub(super) fn new(interrupt: &Interrupt) -> Result<Made, CliError> {
        let above = fresh()?;
        let io = |error| CliError::io(&above, &error);
        let made = Made { path: above.join("model"), above: above.clone() };
        let mut again = Command::new(std::env::current_exe().map_err(io)?);
        again.args(std::env::args_os().skip(1)).arg("--make").arg(&made.path);
        let mut child = again.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(io)?;
        let ended = ended(&mut child, interrupt).map_err(io)?;
        stopped(interrupt)?;
        if ended.success() {
            return Ok(made);
        }
        let mut said = String::new();
        if let Some(mut from) = child.stderr.take() {
            from.read_to_string(&mut said).map_err(io)?;
        }
        let (said, hint) = said.split_once("\nhint: ").unwrap_or((&said, ""));
        let exit = ended.code().and_then(Exit::of_code).unwrap_or(Exit::Io);
        let error =
            CliError::new(exit, format_args!("no random checkpoint: {}", said.trim_start_matches("error: ")));
        Err(if hint.is_empty() { error } else { error.hint(hint) })
    }
}

/// Waits for the child, which a signal to this process ends too.
fn ended(child: &mut Child, interrupt: &Interrupt) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupt.asked().is_some() {
            let _ = child.kill();
            return child.wait();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// # Errors
/// A signal came.
pub(super) fn stopped(interrupt: &Interrupt) -> Result<(), CliError> {
    interrupt.asked().map_or(Ok(()), |exit| Err(CliError::new(exit, "stopped by a signal")))
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
        &ExportSource { model: &model, tokenizer: None, eos: &[] },
        Quant::BF16,
        export::MAX_SHARD,
    )?)
}
