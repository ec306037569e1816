//! How the command ends: exit codes, and errors that carry one.
use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::{config, run};

/// The exit codes of `xtrain`; the top-level help lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command did what it was asked to.
    Ok = 0,
    /// A check ran to its end and found a difference.
    Difference = 1,
    /// The command line or a configuration is wrong.
    Usage = 2,
    /// A file's contents are wrong.
    Data = 65,
    /// A file or directory is not there.
    Missing = 66,
    /// A device or its driver is not there.
    Device = 69,
    /// A bug of xtrain's.
    Bug = 70,
    /// The system refused to read or write.
    Io = 74,
    /// The training diverged: a loss, gradient or weight is not finite.
    Diverged = 75,
    /// Ended by SIGINT (Ctrl-C).
    Interrupted = 130,
    /// Ended by SIGTERM.
    Terminated = 143,
}

impl Exit {
    /// That of a code.
    pub(super) fn of_code(code: i32) -> Option<Exit> {
        use Exit::*;
        [Ok, Difference, Usage, Data, Missing, Device, Bug, Io, Diverged, Interrupted, Terminated]
            .into_iter()
            .find(|exit| *exit as i32 == code)
    }
}

/// The exit codes as the help shows them.
pub(super) const EXIT_HELP: &str = "\
Exit codes:
    0  ok
    1  a check found a difference
    2  wrong command line or configuration
   65  bad data in a file
   66  a file or directory is missing
   69  a device or its driver is missing
   70  a bug in xtrain
   74  reading or writing failed
   75  the training diverged (NaN or infinity)
  130  interrupted (Ctrl-C), after saving
  143  terminated, after saving";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why a command failed: one line, perhaps a hint, and the exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    exit: Exit,
    message: String,
    hint: Option<String>,
}

impl CliError {
    /// An error with that exit code. Line breaks in the message become spaces.
    pub fn new(exit: Exit, message: impl fmt::Display) -> CliError {
        CliError { exit, message: one_line(&message.to_string()), hint: None }
    }

    /// A failure of the system on `path`: [`Exit::Missing`] where it is not there, else [`Exit::Io`].
    pub fn io(path: &Path, error: &io::Error) -> CliError {
        let exit = if error.kind() == io::ErrorKind::NotFound { Exit::Missing } else { Exit::Io };
        CliError::new(exit, format_args!("{}: {error}", path.display()))
    }

    /// Whoever read standard output has left: nothing to say, nothing wrong.
    pub(super) fn reader_left() -> CliError {
        CliError::new(Exit::Ok, "")
    }

    /// This error with a line that says what to do about it.
    pub fn hint(mut self, hint: impl fmt::Display) -> CliError {
        self.hint = Some(one_line(&hint.to_string()));
        self
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CliError {}

impl From<config::Error> for CliError {
    fn from(error: config::Error) -> CliError {
        match &error {
            config::Error::Read { path, source } => CliError::io(path, source),
            _ => CliError::new(Exit::Usage, error),
        }
    }
}

impl From<run::Error> for CliError {
    fn from(error: run::Error) -> CliError {
        match &error {
            run::Error::Exists { path } => CliError::new(Exit::Usage, &error).hint(format_args!(
                "go on with it: xtrain train --resume {0}; or name another directory: --run DIR",
                path.display()
            )),
            run::Error::Missing { .. } => CliError::new(Exit::Missing, error),
            run::Error::Line { .. } | run::Error::Changed { .. } => CliError::new(Exit::Data, error),
            run::Error::Io { .. } => CliError::new(Exit::Io, error),
        }
    }
}

fn one_line(text: &str) -> String {
    text.split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_every_exit_code() {
        let all: Vec<Exit> = (0..=255).filter_map(Exit::of_code).collect();
        for exit in &all {
            let code = format!("{:>5}  ", *exit as u8);
            assert!(EXIT_HELP.lines().any(|line| line.starts_with(&code)), "{exit:?}");
        }
        assert_eq!(EXIT_HELP.lines().count(), 1 + all.len());
    }

    #[test]
    fn an_error_is_one_line_and_a_hint_another() {
        let error = CliError::new(Exit::Data, "a.txt:\n  not text\n").hint("look\nat it");
        assert_eq!(error.to_string(), "error: a.txt: not text\nhint: look at it");
    }
}
