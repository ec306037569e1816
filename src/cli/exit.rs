//! Exit codes, and errors with an exit code.
use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// The exit codes of `xtrain`; [`EXIT_HELP`] describes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Exit {
    Ok = 0,
    Difference = 1,
    Usage = 2,
    Data = 65,
    Missing = 66,
    Device = 69,
    Bug = 70,
    Memory = 71,
    Io = 74,
    Diverged = 75,
    HungUp = 129,
    Interrupted = 130,
    Terminated = 143,
}

impl Exit {
    /// The exit code of an I/O error.
    pub(super) fn of_io(kind: io::ErrorKind) -> Exit {
        if kind == io::ErrorKind::NotFound { Exit::Missing } else { Exit::Io }
    }

    /// The beginning of a message with this exit code.
    fn prefix(self) -> &'static str {
        if self.is_stop() { "" } else { "error: " }
    }

    /// Whether a signal stopped the command.
    pub(super) fn is_stop(self) -> bool {
        matches!(self, Exit::HungUp | Exit::Interrupted | Exit::Terminated)
    }

    /// The exit code with this number. `None`: there is none.
    pub(super) fn from_code(code: i32) -> Option<Exit> {
        use Exit::*;
        let errors = [Difference, Usage, Data, Missing, Device, Bug, Memory, Io, Diverged];
        let all = [Ok].into_iter().chain(errors).chain([HungUp, Interrupted, Terminated]);
        { all }.find(|exit| *exit as i32 == code)
    }
}

/// The exit codes as the help lists them.
pub(super) const EXIT_HELP: &str = "\
Exit codes:
    0  success
    1  a check found a difference
    2  invalid command line or configuration
   65  invalid file contents
   66  file or directory not found
   69  device or driver not available
   70  bug in xtrain
   71  not enough memory
   74  reading or writing failed
   75  training diverged (NaN or infinity)
  129  stopped by a closed terminal (SIGHUP), after saving; not an error
  130  stopped by Ctrl-C, after saving; not an error
  143  stopped by SIGTERM, after saving; not an error";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why a command failed or stopped: a message of one line, an optional hint, the exit code, and the underlying error if
/// there is one. The message of a command that a signal stopped does not begin with `error`.
#[derive(Debug, thiserror::Error)]
#[error("{}{message}{}", exit.prefix(), hint.as_ref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default())]
pub(super) struct CliError {
    exit: Exit,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl CliError {
    /// An error with this exit code. Line breaks in the message become spaces; the numbers of errors of the operating
    /// system, such as `(os error 2)`, are left out.
    pub(super) fn new(exit: Exit, message: impl fmt::Display) -> CliError {
        let message = without_numbers(one_line(&message.to_string()));
        CliError { exit, message, hint: None, source: None }
    }

    /// An I/O error on `path`: [`Exit::Missing`] if it does not exist, otherwise [`Exit::Io`].
    pub(super) fn io(path: &Path, error: &io::Error) -> CliError {
        CliError::new(Exit::of_io(error.kind()), format_args!("{}: {error}", path.display()))
    }

    /// Adds a hint: one line that tells the user what to do.
    pub(super) fn hint(mut self, hint: impl fmt::Display) -> CliError {
        self.hint = Some(one_line(&hint.to_string()));
        self
    }

    /// Sets the line that says what to do, unless there is one.
    pub(super) fn or_hint(self, hint: impl fmt::Display) -> CliError {
        if self.hint.is_some() { self } else { self.hint(hint) }
    }

    /// Puts the file that the error is about before the message.
    pub(super) fn in_file(self, path: &Path) -> CliError {
        CliError { message: format!("{}: {}", path.display(), self.message), ..self }
    }

    pub(super) fn exit(&self) -> Exit {
        self.exit
    }

    /// The message, without hint.
    pub(super) fn message(&self) -> &str {
        &self.message
    }
}

/// An error of a library, with the exit code of a command that fails with it.
pub(super) trait LibraryError: Error + Send + Sync + 'static {
    fn exit(&self) -> Exit;

    /// The message for the user.
    fn message(&self) -> String {
        self.to_string()
    }

    /// The hint for the user.
    fn hint(&self) -> Option<String> {
        None
    }
}

impl<E: LibraryError> From<E> for CliError {
    fn from(error: E) -> CliError {
        let new = CliError::new(error.exit(), error.message());
        let hint = error.hint().map(|hint| one_line(&hint));
        CliError { hint, source: Some(Box::new(error)), ..new }
    }
}

/// A path as one word of a shell command: in quotation marks if it has spaces or other special characters.
pub(super) fn shell_word(path: &Path) -> String {
    let path = path.to_string_lossy();
    shlex::try_quote(&path).map_or_else(|_| path.to_string(), |word| word.into_owned())
}

fn one_line(text: &str) -> String {
    text.split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The message without the numbers that Rust adds to the errors of the operating system.
fn without_numbers(mut message: String) -> String {
    const START: &str = " (os error ";
    while let Some(start) = message.find(START) {
        let rest = &message[start + START.len()..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 || !rest[digits..].starts_with(')') {
            break;
        }
        message.replace_range(start..start + START.len() + digits + 1, "");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    #[test]
    fn the_help_lists_every_exit_code() {
        let all: Vec<Exit> = (0..=255).filter_map(Exit::from_code).collect();
        for exit in &all {
            let code = format!("{:>5}  ", *exit as u8);
            assert!(EXIT_HELP.lines().any(|line| line.starts_with(&code)), "{exit:?}");
        }
        assert_eq!(EXIT_HELP.lines().count(), 1 + all.len());
    }

    #[test]
    fn an_error_is_one_line_and_a_hint_is_another() {
        let error = CliError::new(Exit::Data, "a.txt:\n  not text\n").hint("look\nat it");
        assert_eq!(error.to_string(), "error: a.txt: not text\nhint: look at it");
        assert!(error.source().is_none());
    }

    #[test]
    fn errors_of_the_operating_system_have_words_only() {
        let io = io::Error::from_raw_os_error(2).to_string();
        let shown = |message: String| CliError::new(Exit::Io, message).message;
        assert_eq!(
            shown(format!("a: {io}; b: {io}")),
            shown(
                "a: No such file or directory; b: \
             No such file or directory"
                    .into()
            )
        );
        for kept in ["a (os error x)", "a (os error )", "a (os error 2"] {
            assert_eq!(shown(kept.into()), kept);
        }
    }

    #[test]
    fn a_command_that_a_signal_stopped_reports_no_error() {
        for exit in [Exit::HungUp, Exit::Interrupted, Exit::Terminated] {
            let stopped = CliError::new(exit, "stopped by a signal; checkpoint saved").hint("to resume: a");
            assert_eq!(stopped.to_string(), "stopped by a signal; checkpoint saved\nhint: to resume: a");
        }
    }

    #[test]
    fn paths_with_special_characters_are_quoted() {
        for (path, want) in [("runs/a", "runs/a"), ("my runs/a", "'my runs/a'"), ("it's", "\"it's\"")] {
            assert_eq!(shell_word(Path::new(path)), want);
            assert_eq!(shlex::split(&shell_word(Path::new(path))).unwrap(), [path]);
        }
    }

    #[test]
    fn the_underlying_error_is_the_source() {
        let io = io::Error::other("disk on fire");
        let error = CliError::from(run::Error::Io { path: "a".into(), source: io });
        assert_eq!((error.to_string(), error.exit()), ("error: a: disk on fire".into(), Exit::Io));
        let source = error.source().unwrap();
        assert_eq!(source.source().unwrap().to_string(), "disk on fire");
    }
}
