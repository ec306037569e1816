//! What is said: lines of a terminal or of a pipe.
use std::io::{BufRead, ErrorKind, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use super::stops::Stops;
use super::{CliError, Exit};
use crate::cli::out;

/// The longest line that is read, in bytes.
const MAX_LINE: u64 = 16 << 20;

/// A line, by what it means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Message(String),
    Reset,
    Help,
    Unknown(String),
    End,
}

type Line = Result<Option<String>, CliError>;

/// Standard input, read beside the conversation so that a signal is seen while nobody types.
#[derive(Debug)]
pub(super) struct Input {
    lines: Receiver<Line>,
    terminal: bool,
    /// Lines so far.
    read: usize,
}

impl Input {
    /// # Errors
    /// The system refuses the thread.
    pub(super) fn new(terminal: bool) -> Result<Input, CliError> {
        let (tx, lines) = sync_channel(1);
        // ends with the process, or when nobody wants a line any more
        let reader = move || {
            loop {
                let line = read();
                let last = !matches!(line, Ok(Some(_)));
                if tx.send(line).is_err() || last {
                    return;
                }
            }
        };
        let refused = |e| CliError::new(Exit::Io, format_args!("no thread to read standard input: {e}"));
        std::thread::Builder::new().spawn(reader).map_err(refused)?;
        Ok(Input { lines, terminal, read: 0 })
    }

    /// The next line that says something; `told`: an interrupt so far has been answered.
    ///
    /// # Errors
    /// Input that cannot be read or is no text; a signal that ends.
    pub(super) fn next(&mut self, stops: &Stops, mut told: bool) -> Result<Said, CliError> {
        self.prompt()?;
        loop {
            if let Some(exit) = stops.ended(self.terminal) {
                return Err(CliError::new(exit, "stopped by a signal"));
            }
            if stops.asked() && !told {
                told = true;
                eprintln!("\n[Ctrl-C again or Ctrl-D ends]");
                self.prompt()?;
            }
            let line = match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => line.map_err(|error| self.place_of(self.read + 1, error))?,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => None,
            };
            let Some(line) = line else {
                out::print(if self.terminal { "\n" } else { "" })?;
                return Ok(Said::End);
            };
            self.read += 1;
            stops.begin();
            told = false;
            match meaning(&line, self.terminal) {
                Some(said) => return Ok(said),
                None => self.prompt()?,
            }
        }
    }

    /// An error of the line that was read last, by its number where nobody types.
    pub(super) fn place(&self, error: CliError) -> CliError {
        self.place_of(self.read, error)
    }

    fn place_of(&self, line: usize, error: CliError) -> CliError {
        if self.terminal {
            return error;
        }
        let text = error.to_string();
        CliError::new(
            error.exit(),
            format_args!("standard input:{line}: {}", text.trim_start_matches("error: ")),
        )
    }

    fn prompt(&self) -> Result<(), CliError> {
        out::print(if self.terminal { "> " } else { "" })
    }
}

/// What a line means; nothing where it is blank. In a pipe only the commands that exist are commands.
fn meaning(line: &str, terminal: bool) -> Option<Said> {
    let said = line.trim();
    Some(match said {
        "" => return None,
        "/exit" | "/quit" => Said::End,
        "/reset" => Said::Reset,
        "/help" => Said::Help,
        _ if said.starts_with("//") => Said::Message(said[1..].into()),
        _ if terminal && said.starts_with('/') => {
            Said::Unknown(said.split_whitespace().next().unwrap_or_default().into())
        }
        _ => Said::Message(line.into()),
    })
}

/// The next line without its end; none at the end of the input.
fn read() -> Line {
    let mut bytes = Vec::new();
    let mut from = std::io::stdin().lock();
    loop {
        match from.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut bytes) {
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(CliError::io(Path::new("standard input"), &error)),
        }
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() as u64 > MAX_LINE {
        return Err(CliError::new(Exit::Data, "want a line of at most 16 MiB, found more"));
    }
    let line = String::from_utf8(bytes);
    let mut line = line.map_err(|_| CliError::new(Exit::Data, "want UTF-8 text, found other bytes"))?;
    line.truncate(line.trim_end_matches(['\n', '\r']).len());
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_command_or_a_message() {
        for (line, terminal, want) in [
            (" ", true, None),
            ("/exit", false, Some(Said::End)),
            (" /reset ", true, Some(Said::Reset)),
            ("/help", false, Some(Said::Help)),
            ("/rest now", true, Some(Said::Unknown("/rest".into()))),
            ("/rest now", false, Some(Said::Message("/rest now".into()))),
            ("//exit", true, Some(Said::Message("/exit".into()))),
            ("  hi ", true, Some(Said::Message("  hi ".into()))),
        ] {
            assert_eq!(meaning(line, terminal), want, "{line:?}");
        }
    }
}
