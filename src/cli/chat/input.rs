//! User input: lines of a terminal or of a pipe.
use std::io::{BufRead, Read};
use std::path::Path;
use std::string::FromUtf8Error;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::Duration;

use super::line_editor::{self, Line, TerminalMode};
use super::signals::ChatSignals;
use crate::cli::exit::{CliError, Exit, LibraryError};
use crate::model::data::DataError;

/// Maximum length of a line, in bytes.
const MAX_LINE: u64 = 16 << 20;

/// Interval at which signals are checked while waiting for a line.
const POLL: Duration = Duration::from_millis(50);

/// The meaning of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UserInput {
    Message(String),
    Reset,
    Help,
    Unknown(String),
    End,
}

/// Standard input. A thread reads it, so that signals are noticed while waiting for a line.
#[derive(Debug)]
pub(super) struct Input {
    lines: Receiver<Result<Line, CliError>>,
    /// The line editor. `None`: standard input is not a terminal.
    editor: Option<Editor>,
    /// Number of lines read so far.
    line: usize,
}

#[derive(Debug)]
struct Editor {
    /// Requests one line.
    requests: Sender<()>,
    _mode: TerminalMode,
}

impl Input {
    pub(super) fn new(terminal: bool) -> Result<Input, CliError> {
        let refused =
            |e| CliError::new(Exit::Io, format_args!("cannot start a thread to read standard input: {e}"));
        let spawn = |reader: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().spawn(reader).map(drop).map_err(refused)
        };
        if terminal {
            let ((requests, requested), (sender, lines)) = (channel(), channel());
            let mode = TerminalMode::save();
            spawn(Box::new(move || line_editor::run(&requested, &sender)))?;
            return Ok(Input { lines, editor: Some(Editor { requests, _mode: mode }), line: 0 });
        }
        let (sender, lines) = sync_channel(1);
        // The thread ends with the process, or when the receiver is dropped.
        spawn(Box::new(move || {
            loop {
                let line = read_line();
                let last = !matches!(line, Ok(Line::Text(_)));
                if sender.send(line).is_err() || last {
                    return;
                }
            }
        }))?;
        Ok(Input { lines, editor: None, line: 0 })
    }

    /// Returns the next line that is not blank. `reported`: the last interrupt stopped a reply, so no hint is printed
    /// for it. A signal or a second Ctrl-C ends the conversation with an error.
    pub(super) fn next(&mut self, signals: &ChatSignals, mut reported: bool) -> Result<UserInput, CliError> {
        let terminal = self.editor.is_some();
        // Whether the next Ctrl-C exits.
        let mut armed = false;
        self.request_line();
        loop {
            if let Some(exit) = signals.exit(terminal) {
                return Err(CliError::new(exit, "stopped by a signal"));
            }
            if signals.interrupted() {
                // It stopped the reply, or another process sent it. The flag is cleared: while it is set, the handler of
                // the next SIGINT exits without restoring the terminal from raw mode.
                signals.clear_interrupt();
                if armed {
                    return Err(CliError::new(Exit::Interrupted, "interrupted"));
                }
                armed = true;
                if !reported {
                    eprint!("\r\n{INTERRUPT_HINT}\r\n> ");
                }
                reported = false;
            }
            let line = match self.lines.recv_timeout(POLL) {
                Ok(line) => line.map_err(|error| self.at(self.line + 1, error))?,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => Line::End,
            };
            match line {
                Line::End => return Ok(UserInput::End),
                Line::Interrupt if armed => {
                    return Err(CliError::new(Exit::Interrupted, "interrupted"));
                }
                Line::Interrupt => {
                    armed = true;
                    eprintln!("{INTERRUPT_HINT}");
                }
                Line::Text(text) => {
                    self.line += 1;
                    signals.clear_interrupt();
                    armed = false;
                    let marked = text.strip_prefix('\u{feff}').filter(|_| self.line == 1);
                    let text = marked.unwrap_or(&text);
                    if let Some(input) = parse(text, terminal) {
                        return Ok(input);
                    }
                }
            }
            self.request_line();
        }
    }

    /// Adds the number of the last line to an error, unless the input is a terminal.
    pub(super) fn at_line(&self, error: CliError) -> CliError {
        self.at(self.line, error)
    }

    fn at(&self, line: usize, error: CliError) -> CliError {
        if self.editor.is_some() {
            return error;
        }
        error.in_file(Path::new(&format!("standard input:{line}")))
    }

    /// Prompts for a line on a terminal. A pipe is read without requests.
    fn request_line(&self) {
        if let Some(editor) = &self.editor {
            // If the editor failed, the next receive returns its error.
            let _ = editor.requests.send(());
        }
    }
}

const INTERRUPT_HINT: &str = "[press Ctrl-C again or Ctrl-D to exit]";

/// The meaning of a line. `None`: it is blank. In a pipe, an unknown command is a message.
fn parse(line: &str, terminal: bool) -> Option<UserInput> {
    let text = line.trim();
    Some(match text {
        "" => return None,
        "/exit" | "/quit" => UserInput::End,
        "/reset" => UserInput::Reset,
        "/help" => UserInput::Help,
        _ if text.starts_with("//") => UserInput::Message(text[1..].into()),
        _ if terminal && text.starts_with('/') => {
            UserInput::Unknown(text.split_whitespace().next().unwrap_or_default().into())
        }
        _ => UserInput::Message(line.into()),
    })
}

/// Reads the next line of a pipe.
fn read_line() -> Result<Line, CliError> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MAX_LINE + 1).read_until(b'\n', &mut bytes);
    read.map_err(|error| CliError::io(Path::new("standard input"), &error))?;
    if bytes.is_empty() {
        return Ok(Line::End);
    }
    if bytes.len() as u64 > MAX_LINE {
        return Err(CliError::new(Exit::Data, "expected a line of at most 16 MiB"));
    }
    let mut line = String::from_utf8(bytes).map_err(|error| not_text(&error))?;
    line.truncate(line.trim_end_matches(['\n', '\r']).len());
    Ok(Line::Text(line))
}

/// The error for a line that is not UTF-8, without a place: [`Input::at`] adds it.
fn not_text(error: &FromUtf8Error) -> CliError {
    let error = DataError::not_text(Path::new("line"), error);
    let message = error.to_string();
    let without_place = CliError::new(Exit::Data, message.strip_prefix("line: ").unwrap_or(&message));
    match error.hint() {
        Some(hint) => without_place.hint(hint),
        None => without_place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_command_or_a_message() {
        for (line, terminal, want) in [
            (" ", true, None),
            ("/exit", false, Some(UserInput::End)),
            (" /reset ", true, Some(UserInput::Reset)),
            ("/help", false, Some(UserInput::Help)),
            ("/rest now", true, Some(UserInput::Unknown("/rest".into()))),
            ("/rest now", false, Some(UserInput::Message("/rest now".into()))),
            ("//exit", true, Some(UserInput::Message("/exit".into()))),
            ("  hi ", true, Some(UserInput::Message("  hi ".into()))),
        ] {
            assert_eq!(parse(line, terminal), want, "{line:?}");
        }
    }
}
