//! Checks of input files.
use std::fs::{self, File};
use std::io::IsTerminal;
use std::path::Path;

use super::exit::{CliError, Exit};

/// Checks that a file that is read as a whole can have an end: it is no device such as `/dev/zero`.
pub(super) fn require_end(path: &Path) -> Result<(), CliError> {
    if !is_device(path) || File::open(path).is_ok_and(|file| file.is_terminal()) {
        return Ok(());
    }
    let message = format_args!("{}: expected a file or a pipe, found a device", path.display());
    Err(CliError::new(Exit::Data, message))
}

#[cfg(unix)]
fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata(path)
        .is_ok_and(|file| file.file_type().is_char_device() || file.file_type().is_block_device())
}

#[cfg(not(unix))]
fn is_device(_: &Path) -> bool {
    false
}
