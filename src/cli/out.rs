//! Standard output.
use std::io::{ErrorKind, Write};
use std::path::Path;

use serde::Serialize;

use super::exit::{CliError, Exit};
use crate::standard_error::is_silent;
use crate::tensor::faults::{self, Fault};

/// Writes text to standard output and flushes it. If the reader closed the pipe (`xtrain ... | head`), the error ends
/// the command with exit code 0 and no message. Of several processes, only the first one prints.
pub(super) fn print(text: impl AsRef<[u8]>) -> Result<(), CliError> {
    if is_silent() {
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => CliError::new(Exit::Ok, ""),
        _ => CliError::io(Path::new("standard output"), &error),
    })
}

/// Writes the text of a check to standard output. A verdict that fails the command is returned even if the reader closed
/// the pipe.
pub(super) fn print_verdict(text: impl AsRef<[u8]>, verdict: Result<(), CliError>) -> Result<(), CliError> {
    let printed = print(text);
    if faults::on(Fault::VerdictLostWithReader) { printed.and(verdict) } else { verdict.and(printed) }
}

/// Writes `value` to standard output as JSON on one line.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    print(json(value))
}

/// `value` as JSON on one line.
pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("a struct of numbers and strings is JSON") + "\n"
}
