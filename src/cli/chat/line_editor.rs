//! Reads lines from a terminal, with history and cursor keys.
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender};

use rustyline::DefaultEditor;
use rustyline::config::Config;
use rustyline::error::ReadlineError;

use crate::cli::exit::CliError;

const PROMPT: &str = "> ";

/// What a reader thread returns.
#[derive(Debug)]
pub(super) enum Line {
    /// A line without its line break.
    Text(String),
    /// Ctrl-C, read as a key by the line editor.
    Interrupt,
    /// The end of the input.
    End,
}

/// Runs the editor: reads one line for each request until the conversation ends.
///
/// The terminal is in raw mode only while a line is read; there Ctrl-C is a key. At other times it is a SIGINT. If the
/// terminal cannot be opened, the thread sends the error and ends.
pub(super) fn run(requests: &Receiver<()>, lines: &Sender<Result<Line, CliError>>) {
    let config = Config::builder().bracketed_paste(false).build();
    let mut editor = match DefaultEditor::with_config(config) {
        Ok(editor) => editor,
        Err(error) => return drop(lines.send(Err(failed(error)))),
    };
    while requests.recv().is_ok() {
        let line = match editor.readline(PROMPT) {
            Ok(text) => {
                // Ignored: adding to the history in memory does not fail.
                let _ = editor.add_history_entry(text.as_str());
                Ok(Line::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupt),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(failed(error)),
        };
        if lines.send(line).is_err() {
            return;
        }
    }
}

fn failed(error: ReadlineError) -> CliError {
    let error = match error {
        ReadlineError::Io(error) => error,
        other => std::io::Error::other(other),
    };
    CliError::io(Path::new("terminal"), &error)
}

/// Restores the mode of the terminal on drop, for when SIGTERM ends the command while the editor reads a line.
#[derive(Debug)]
pub(super) struct TerminalMode {
    #[cfg(unix)]
    saved: Option<nix::sys::termios::Termios>,
}

impl TerminalMode {
    /// Saves the present mode of standard input.
    pub(super) fn save() -> TerminalMode {
        TerminalMode {
            #[cfg(unix)]
            saved: nix::sys::termios::tcgetattr(std::io::stdin()).ok(),
        }
    }
}

#[cfg(unix)]
impl Drop for TerminalMode {
    fn drop(&mut self) {
        use nix::sys::termios::{SetArg, tcsetattr};
        if let Some(saved) = &self.saved {
            // The command ends in any case.
            let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, saved);
        }
    }
}
