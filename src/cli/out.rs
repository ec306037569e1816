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
/// As [`print()`].
pub fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).expect("a struct of numbers and strings is JSON");
    print(text + "\n")
}

/// A file that appears under its name only when it is complete. What is no file (a pipe, `/dev/null`) is
/// written as it comes.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    draft: Option<PathBuf>,
    file: BufWriter<File>,
}

impl AtomicFile {
    /// Begins a file that is to stand at `path`.
    ///
    /// # Errors
    /// It cannot be made there.
    pub fn create(path: &Path) -> Result<AtomicFile, CliError> {
        let io = |error| CliError::io(path, &error);
        let there = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if there.exists() && !there.is_file() {
            let file = File::options().write(true).open(&there).map_err(io)?;
            return Ok(AtomicFile { path: there, draft: None, file: BufWriter::new(file) });
        }
        let mut name = there.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        let draft = there.with_file_name(name);
        let file = BufWriter::new(File::create(&draft).map_err(io)?);
        Ok(AtomicFile { path: there, draft: Some(draft), file })
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.file.write_all(bytes).map_err(|error| CliError::io(&self.path, &error))
    }

    /// Puts the file at its place, over what stood there.
    ///
    /// # Errors
    /// It cannot be written or moved; what stood there is still there.
    pub fn finish(mut self) -> Result<(), CliError> {
        let moved = match &self.draft {
            None => self.file.flush(),
            Some(draft) => self
                .file
                .flush()
                .and_then(|()| self.file.get_ref().sync_all())
                .and_then(|()| fs::rename(draft, &self.path)),
        };
        moved.map_err(|error| CliError::io(&self.path, &error))
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(draft) = &self.draft {
            // gone already where it was finished
            let _ = fs::remove_file(draft);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_that_is_dropped_leaves_what_stood_there() {
        let dir = std::env::temp_dir().join(format!("xtrain-draft-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a");
        fs::write(&path, "old").unwrap();
        let mut draft = AtomicFile::create(&path).unwrap();
        draft.write(b"half").unwrap();
        drop(draft);
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), fs::read_dir(&dir).unwrap().count()),
            ("old".into(), 1)
        );
        let mut draft = AtomicFile::create(&path).unwrap();
        draft.write(b"new").unwrap();
        draft.finish().unwrap();
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), fs::read_dir(&dir).unwrap().count()),
            ("new".into(), 1)
        );
        assert!(AtomicFile::create(&dir).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn what_is_no_file_is_written_to_and_stays() {
        let mut null = AtomicFile::create(Path::new("/dev/null")).unwrap();
        null.write(b"gone").unwrap();
        null.finish().unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }
}
