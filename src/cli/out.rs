//! Standard output, and files that are whole or not there.
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

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

/// Writes `value` to standard output as JSON on one line.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).expect("a struct of numbers and strings is JSON");
    print(text + "\n")
}

/// A file that appears under its name only when it is complete.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    draft: PathBuf,
    file: Option<BufWriter<File>>,
}

impl Draft {
    /// Begins a file that is to stand at `path`.
    ///
    /// # Errors
    /// It cannot be made there.
    pub fn create(path: &Path) -> Result<Draft, CliError> {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        let draft = path.with_file_name(name);
        if path.is_dir() {
            return Err(CliError::io(path, &ErrorKind::IsADirectory.into()));
        }
        let file = File::create(&draft).map_err(|error| CliError::io(path, &error))?;
        Ok(Draft { path: path.to_path_buf(), draft, file: Some(BufWriter::new(file)) })
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        let file = self.file.as_mut().expect("a draft has its file until it is finished");
        file.write_all(bytes).map_err(|error| CliError::io(&self.path, &error))
    }

    /// Puts the file at its place, over what stood there.
    ///
    /// # Errors
    /// It cannot be written or moved; what stood there is still there.
    pub fn finish(mut self) -> Result<(), CliError> {
        let file = self.file.take().expect("a draft has its file until it is finished");
        let written = file.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all());
        written
            .and_then(|()| fs::rename(&self.draft, &self.path))
            .map_err(|error| CliError::io(&self.path, &error))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // gone already where it was finished
        let _ = fs::remove_file(&self.draft);
    }
}
