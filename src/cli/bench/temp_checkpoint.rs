//! A temporary checkpoint with random weights.
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::bench_model;
use super::shared::Shared;
use crate::cli::exit::{CliError, Exit};
use crate::cli::interrupt::Interrupt;
use crate::model::export::{self, ExportSource};
use crate::model::gguf::Quant;

/// A bf16 Hugging Face directory under the temporary directory, removed on drop. The first signal lets it be dropped;
/// a second one ends the process immediately.
#[derive(Debug)]
pub(super) struct TempCheckpoint {
    parent: PathBuf,
    pub(super) path: PathBuf,
}

impl TempCheckpoint {
    /// Runs this command line in a child process with `--make`, so that creating the checkpoint leaves no memory in
    /// use in this process.
    pub(super) fn new(interrupt: &Interrupt) -> Result<TempCheckpoint, CliError> {
        let parent = create_directory()?;
        let io = |error| CliError::io(&parent, &error);
        let checkpoint = TempCheckpoint { path: parent.join("model"), parent: parent.clone() };
        let mut command = Command::new(std::env::current_exe().map_err(io)?);
        command.args(std::env::args_os().skip(1)).arg("--make").arg(&checkpoint.path);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(io)?;
        let status = wait(&mut child, interrupt).map_err(io)?;
        check_signal(interrupt)?;
        if status.success() {
            return Ok(checkpoint);
        }
        let mut stderr = String::new();
        if let Some(mut pipe) = child.stderr.take() {
            pipe.read_to_string(&mut stderr).map_err(io)?;
        }
        let (message, hint) = stderr.split_once("\nhint: ").unwrap_or((&stderr, ""));
        let exit = status.code().and_then(Exit::from_code).unwrap_or(Exit::Io);
        let message = message.trim_start_matches("error: ");
        let error = CliError::new(exit, format_args!("cannot create a random checkpoint: {message}"));
        Err(if hint.is_empty() { error } else { error.hint(hint) })
    }
}

/// Waits for the child. A signal to this process ends it too.
fn wait(child: &mut Child, interrupt: &Interrupt) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupt.requested().is_some() {
            let _ = child.kill();
            return child.wait();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(super) fn check_signal(interrupt: &Interrupt) -> Result<(), CliError> {
    interrupt.requested().map_or(Ok(()), |exit| Err(CliError::new(exit, "stopped by a signal")))
}

/// Creates a new directory.
fn create_directory() -> Result<PathBuf, CliError> {
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

impl Drop for TempCheckpoint {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.parent);
    }
}

/// Writes random weights of the configured sizes.
pub(super) fn write(out: &Path, shared: &Shared) -> Result<(), CliError> {
    let (model, _) = bench_model::open(None, shared, 1)?;
    let source = ExportSource { model: &model, tokenizer: None, eos: &[] };
    Ok(export::huggingface(out, &source, Quant::BF16, export::MAX_SHARD)?)
}
