//! Checks of input files.
use std::fs::{self, File};
use std::io::IsTerminal;
use std::path::Path;

use super::exit::{CliError, Exit, shell_word};
use crate::model::data::DataError;
use crate::tensor::faults::{self, Fault};

/// Checks that a file that is read as a whole can have an end: it is no directory, and no device such as `/dev/zero`.
pub(super) fn require_end(path: &Path) -> Result<(), CliError> {
    require_no_directory(path)?;
    if !is_device(path) || File::open(path).is_ok_and(|file| file.is_terminal()) {
        return Ok(());
    }
    let message = format_args!("{}: expected a file or a pipe, found a device", path.display());
    Err(CliError::new(Exit::Data, message))
}

/// Checks that a file can be read more than once: it is no directory, no pipe, no device, and not `-`. Another path without
/// a file is left to the reader.
pub(super) fn require_rereadable(path: &Path) -> Result<(), CliError> {
    require_no_directory(path)?;
    let stdin = (path == Path::new("-") && !path.exists()).then_some("standard input");
    let Some(found) = special_file(path).or(stdin) else { return Ok(()) };
    let message = format_args!("{}: expected a regular file, found {found}", path.display());
    Err(CliError::new(Exit::Data, message)
        .hint("it is read more than once; write its content to a file first"))
}

/// The text of a file that is read as a whole, without a byte order mark at its beginning.
///
/// # Errors
/// Those of [`require_end`]; the file cannot be read, or is not UTF-8.
pub(super) fn read_text(path: &Path) -> Result<String, CliError> {
    require_end(path)?;
    text_of(path, fs::read(path).map_err(|error| CliError::io(path, &error))?)
}

/// The bytes of a file as text, without a byte order mark at its beginning.
///
/// # Errors
/// They are not UTF-8. The error names `path`.
pub(super) fn text_of(path: &Path, bytes: Vec<u8>) -> Result<String, CliError> {
    let mut text = String::from_utf8(bytes).map_err(|error| DataError::not_text(path, &error))?;
    if text.starts_with('\u{feff}') && !faults::on(Fault::ByteOrderMarkKept) {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

fn require_no_directory(path: &Path) -> Result<(), CliError> {
    if !path.is_dir() {
        return Ok(());
    }
    let error =
        CliError::new(Exit::Data, format_args!("{}: expected a file, found a directory", path.display()));
    let names = path.read_dir().into_iter().flatten().flatten().filter(|entry| entry.path().is_file());
    Err(match names.map(|entry| entry.path()).min() {
        Some(file) => error.hint(format_args!("name its files, for example {}", shell_word(&file))),
        None => error,
    })
}

fn is_device(path: &Path) -> bool {
    special_file(path) == Some("a device")
}

/// The kind of a file that is neither a regular file nor a directory.
#[cfg(unix)]
fn special_file(path: &Path) -> Option<&'static str> {
    use std::os::unix::fs::FileTypeExt;
    let kind = path.metadata().ok()?.file_type();
    match () {
        () if kind.is_char_device() || kind.is_block_device() => Some("a device"),
        () if kind.is_fifo() => Some("a pipe"),
        () if kind.is_socket() => Some("a socket"),
        () => None,
    }
}

#[cfg(not(unix))]
fn special_file(_: &Path) -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        let of = |bytes: &[u8]| text_of(Path::new("a"), bytes.to_vec()).unwrap();
        assert_eq!((of(b""), of(b"a\xef\xbb\xbf")), (String::new(), "a\u{feff}".to_string()));
        of(b"\xef\xbb\xbfa")
    }

    #[test]
    fn a_byte_order_mark_at_the_beginning_is_dropped() {
        assert_eq!(text(), "a");
    }

    #[test]
    #[cfg(feature = "faults")]
    fn a_byte_order_mark_that_is_kept_is_found() {
        assert_eq!(faults::with(Fault::ByteOrderMarkKept, text), "\u{feff}a");
    }
}
