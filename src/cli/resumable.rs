//! The run that `--resume` names.
use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::exit::{CliError, Exit, shell_word};
use super::out;
use crate::config::{self, KeyDifference, Layer, RunConfig};
use crate::run::{RunDir, has_checkpoint};
use crate::tensor::faults::{self, Fault};

/// Opens the run that `--resume` of `command` names: `train` or `grpo`.
///
/// # Errors
/// It does not exist, or it is something else. The hint is the command that works with it.
pub(super) fn open(name: &Path, command: &str) -> Result<RunDir, CliError> {
    if name.is_file() {
        return Err(refused(name, "a file", &from_weights(name, command)));
    }
    let run = RunDir::open(name)?;
    if run.config().is_file() {
        return Ok(run);
    }
    let path = run.path();
    let is_checkpoint = path.join("manifest.json").is_file();
    Err(match run_of(path) {
        Some(of) => {
            let found = if is_checkpoint { "one of its checkpoints" } else { "a directory inside of it" };
            refused(path, found, &format!("to resume it: xtrain {command} --resume {}", shell_word(&of)))
        }
        None if is_checkpoint => refused(path, "a checkpoint", &from_weights(path, command)),
        None if has_checkpoint(path) && run.metrics().is_file() => refused(
            path,
            "one without it",
            &format!(
                "restore config.toml (run.toml in its checkpoints records the keys that results depend on), or, {}",
                from_weights(path, command)
            ),
        ),
        None if has_checkpoint(path) => refused(path, "an imported model", &from_weights(path, command)),
        None if path.join("config.json").is_file() => {
            refused(path, "a Hugging Face model", &from_weights(path, command))
        }
        None if RunDir::is_unfinished(path) => {
            refused(path, "one whose start was interrupted", "remove the directory, and start the run again")
        }
        None => refused(
            path,
            "another directory",
            "xtrain train and xtrain grpo write config.toml into the directory of their run",
        ),
    })
}

/// The command that resumes the run at `path`: `train` or `grpo`.
pub(super) fn command(path: &Path) -> &'static str {
    let config = RunConfig::load(&[Layer::File(path.join("config.toml"))]);
    if config.is_ok_and(|config| config.is_grpo()) { "grpo" } else { "train" }
}

/// Checks that a run that is now locked still has no checkpoint. Another process may have trained it since `command`
/// was started.
pub(super) fn require_no_checkpoint(run: &RunDir, command: &str) -> Result<(), CliError> {
    if !has_checkpoint(run.path()) || faults::on(Fault::TrainedRunStartedAgain) {
        return Ok(());
    }
    let path = run.path().display();
    let message = format!("{path}: expected no checkpoint, found one that another process saved meanwhile");
    Err(CliError::new(Exit::Usage, message)
        .hint(format_args!("to resume it: xtrain {command} --resume {}", shell_word(run.path()))))
}

/// Checks that the number of steps, which a resume changes from the first to the second number, is not below `step`, the
/// number of those that are done.
pub(super) fn require_not_passed(run: &RunDir, step: u64, (before, now): (u64, u64)) -> Result<(), CliError> {
    if now >= step || now == before || faults::on(Fault::PassedStepsAccepted) {
        return Ok(());
    }
    let path = run.path().display();
    let message =
        format_args!("--resume: expected at least {step} steps, which {path} has done, found {now}");
    Err(CliError::new(Exit::Usage, message)
        .hint("checkpoints of earlier steps, if they were kept, can be used with --init"))
}

/// Prints the recorded keys that a resume changes. `before`: the record so far.
pub(super) fn print_changes(before: &str, config: &RunConfig) -> Result<(), CliError> {
    for KeyDifference { key, recorded, found } in config::differences("config.toml", before, config)? {
        eprintln!("{key}: {recorded} -> {found}");
    }
    Ok(())
}

/// How a finished run of `command` continues.
pub(super) fn more_steps(run: &RunDir, command: &str, step: u64) -> String {
    let (word, steps) = (shell_word(run.path()), 2 * step);
    format!("increase the number of steps: xtrain {command} --resume {word} --steps {steps}")
}

/// Prints that a run has no step left, what continues it, and the changed keys that are not stored for this reason.
pub(super) fn print_complete(
    run: &RunDir,
    step: u64,
    changed: &[String],
    next: impl Display,
) -> Result<(), CliError> {
    if !changed.is_empty() {
        eprintln!("note: not stored, because no step is left: {}", changed.join(", "));
    }
    out::print(format!("{} is complete at step {step}; to continue, {next}\n", run.path().display()))
}

fn refused(path: &Path, found: &str, hint: &str) -> CliError {
    let message = format_args!("{}: expected a run with config.toml, found {found}", path.display());
    CliError::new(Exit::Missing, message).hint(hint)
}

fn from_weights(path: &Path, command: &str) -> String {
    let data = if command == "train" { " --data FILE" } else { "" };
    format!("to train from its weights: xtrain {command} --init {}{data} --run DIR", shell_word(path))
}

/// The run whose checkpoint or directory of checkpoints is `path`. `None`: it belongs to no run.
fn run_of(path: &Path) -> Option<PathBuf> {
    let dir =
        path.ancestors().take(2).find(|dir| dir.file_name().is_some_and(|name| name == "checkpoints"))?;
    dir.parent().filter(|run| run.join("config.toml").is_file()).map(Path::to_path_buf)
}
