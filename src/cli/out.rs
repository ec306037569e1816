//! Standard output.
use std::io::{ErrorKind, Write};
use std::path::Path;

use super::CliError;

/// Writes text to standard output and flushes it.
///
/// # Errors
/// It cannot be written. Where the reader has left (`xtrain ... | head`), the error ends the command
/// with exit code 0 and no message.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => CliError::reader_left(),
        _ => CliError::io(Path::new("standard output"), &error),
    })
}
