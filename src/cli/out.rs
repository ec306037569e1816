//! Standard output, and files that are written atomically.
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::common::Force;
use super::exit::{CliError, Exit};
use crate::model::temporary::temporary_path;

/// Writes text to standard output and flushes it. If the reader closed the pipe (`xtrain ... | head`), the error ends
/// the command with exit code 0 and no message.
pub(super) fn print(text: impl AsRef<[u8]>) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => CliError::new(Exit::Ok, ""),
        _ => CliError::io(Path::new("standard output"), &error),
    })
}

/// Writes `value` to standard output as JSON on one line.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).expect("a struct of numbers and strings is JSON");
    print(text + "\n")
}

/// Checks that a command may write its output file: it does not exist, or `--force` replaces it. Pipes and devices are
/// written, not replaced.
pub(super) fn check_absent(path: &Path, force: Force) -> Result<(), CliError> {
    if force.force || !path.is_file() {
        return Ok(());
    }
    let message = format_args!("{}: already exists", path.display());
    Err(CliError::new(Exit::Usage, message).hint("choose another path, or replace it with --force"))
}

/// A file that appears under its name only when it is complete: it is written to a temporary file next to it, which
/// is renamed at the end. A pipe or a device such as `/dev/null` is written directly.
#[derive(Debug)]
pub(super) struct AtomicFile {
    path: PathBuf,
    /// The temporary file. `None`: `path` is written directly.
    temporary: Option<PathBuf>,
    file: BufWriter<File>,
}

impl AtomicFile {
    /// Creates the temporary file for `path`, in the same directory.
    pub(super) fn create(path: &Path) -> Result<AtomicFile, CliError> {
        let io = |error| CliError::io(path, &error);
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if target.exists() && !target.is_file() {
            let file = File::options().write(true).open(&target).map_err(io)?;
            return Ok(AtomicFile { path: target, temporary: None, file: BufWriter::new(file) });
        }
        let temporary = temporary_path(&target);
        let file = BufWriter::new(File::create(&temporary).map_err(io)?);
        Ok(AtomicFile { path: target, temporary: Some(temporary), file })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.file.write_all(bytes).map_err(|error| CliError::io(&self.path, &error))
    }

    /// Renames an incomplete file to `NAME.partial`, next to the file. Returns this path; that of a pipe or a device is
    /// its own.
    pub(super) fn keep_partial(mut self) -> Result<PathBuf, CliError> {
        if self.temporary.is_some() {
            let mut name = self.path.file_name().unwrap_or_default().to_os_string();
            name.push(".partial");
            self.path.set_file_name(name);
        }
        let path = self.path.clone();
        self.finish().map(|()| path)
    }

    /// Renames the file to its final name, replacing an existing file. After an error, that file is unchanged.
    pub(super) fn finish(mut self) -> Result<(), CliError> {
        let result = match &self.temporary {
            None => self.file.flush(),
            Some(temporary) => self
                .file
                .flush()
                .and_then(|()| self.file.get_ref().sync_all())
                .and_then(|()| fs::rename(temporary, &self.path)),
        };
        result.map_err(|error| CliError::io(&self.path, &error))
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // It no longer exists if the file was finished.
            let _ = fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_file_leaves_the_old_one_unchanged() {
        let dir = std::env::temp_dir().join(format!("xtrain-atomic-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a");
        fs::write(&path, "old").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write(b"half").unwrap();
        drop(file);
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), fs::read_dir(&dir).unwrap().count()),
            ("old".into(), 1)
        );
        let mut file = AtomicFile::create(&path).unwrap();
        file.write(b"new").unwrap();
        file.finish().unwrap();
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), fs::read_dir(&dir).unwrap().count()),
            ("new".into(), 1)
        );
        assert!(AtomicFile::create(&dir).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn a_device_is_written_directly() {
        let mut null = AtomicFile::create(Path::new("/dev/null")).unwrap();
        null.write(b"data").unwrap();
        null.finish().unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }
}
