//! Files that appear under their names only when they are complete.
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::exit::{CliError, Exit};
use super::output_path::{is_written_directly, open_directly, partial_path, target_of};
use crate::model::temporary::temporary_path;
use crate::run::sync_name;
use crate::tensor::faults::{self, Fault};

/// A file that appears under its name only when it is complete: it is written to a temporary file next to it, which
/// is renamed at the end. A pipe, a device such as `/dev/null` or an open file such as `/dev/stdout` is written directly.
#[derive(Debug)]
pub(super) struct AtomicFile {
    path: PathBuf,
    /// The temporary file. `None`: `path` is written directly.
    temporary: Option<PathBuf>,
    /// Whether `path` existed when this was created.
    replaces: bool,
    file: BufWriter<File>,
    /// Whether a write failed: the file may end within a line.
    failed: bool,
    /// Whether `NAME.partial` is of an earlier command, and may have lines that this file lacks.
    keeps_partial: bool,
}

impl AtomicFile {
    /// Creates the temporary file for `path`, in the same directory.
    pub(super) fn create(path: &Path) -> Result<AtomicFile, CliError> {
        let io = |error| CliError::io(path, &error);
        let target = target_of(path);
        if is_written_directly(path) {
            let file = open_directly(&target).map_err(io)?;
            return Ok(AtomicFile {
                path: target,
                temporary: None,
                replaces: true,
                file: BufWriter::new(file),
                failed: false,
                keeps_partial: false,
            });
        }
        let temporary = temporary_path(&target);
        let file = BufWriter::new(File::create(&temporary).map_err(io)?);
        Ok(AtomicFile {
            replaces: exists(&target),
            path: target,
            temporary: Some(temporary),
            file,
            failed: false,
            keeps_partial: false,
        })
    }

    /// Appends bytes. After an error the file may end within them, so nothing more is written.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        let written = if self.failed {
            Err(std::io::Error::other("an earlier write failed"))
        } else {
            self.file.write_all(bytes)
        };
        self.failed |= written.is_err();
        written.map_err(|error| CliError::io(&self.path, &error))
    }

    /// Whether a write failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// The path of the incomplete file.
    pub(super) fn partial(&self) -> PathBuf {
        partial_path(&self.path)
    }

    /// Sets whether a failed write leaves the incomplete file of an earlier command as it is.
    pub(super) fn keep_older_partial(&mut self, keep: bool) {
        self.keeps_partial = keep && !faults::on(Fault::OlderPartialReplaced);
    }

    /// [`AtomicFile::finish`] of a file of lines, which does not replace a file that another command has written since
    /// [`AtomicFile::create`]. If it cannot be written, as on a full disk, or not be renamed, its whole lines are kept
    /// as `NAME.partial`.
    pub(super) fn finish_lines(mut self) -> Result<(), CliError> {
        if let Err(error) = self.flush() {
            return Err(self.keep_lines(error));
        }
        if faults::on(Fault::UnrenamedLinesRemoved) {
            return self.finish();
        }
        self.keeps_partial = false; // this file has all lines
        let is_newer = !self.replaces && exists(&self.path) && !faults::on(Fault::NewerFileReplaced);
        let renamed = match is_newer && self.temporary.is_some() {
            true => {
                let message = format_args!("{}: another command has written this file", self.path.display());
                Err(CliError::new(Exit::Io, message))
            }
            false => self.rename(),
        };
        renamed.map_err(|error| self.keep_lines(error))
    }

    /// Writes what is buffered, and makes it durable.
    fn flush(&mut self) -> Result<(), CliError> {
        let is_regular = self.temporary.is_some();
        let synced = |file: &File| if is_regular { file.sync_all() } else { Ok(()) };
        let flushed = self.file.flush().and_then(|()| synced(self.file.get_ref()));
        flushed.map_err(|error| CliError::io(&self.path, &error))
    }

    /// `error`, with the place of the whole lines that could be written before it.
    pub(super) fn keep_lines(self, error: CliError) -> CliError {
        let Some(temporary) = self.temporary.as_ref().filter(|_| !faults::on(Fault::WrittenLinesRemoved))
        else {
            return error;
        };
        let path = self.partial();
        if self.keeps_partial {
            return error.hint(format_args!("{} is unchanged", path.display()));
        }
        if fs::rename(temporary, &path).is_err() {
            return error;
        }
        // writes what is buffered, as far as it can be written
        drop(self);
        match cut_to_lines(&path) {
            Ok(0) | Err(_) => {
                let _ = fs::remove_file(&path);
                error
            }
            Ok(1) => error.hint(format_args!("1 line is in {}", path.display())),
            Ok(lines) => error.hint(format_args!("{lines} lines are in {}", path.display())),
        }
    }

    /// Renames an incomplete file to `NAME.partial`, and returns this path. What is written directly keeps its path. If
    /// the file cannot be written, as on a full disk, its whole lines are kept, and the error says where.
    pub(super) fn keep_partial(mut self) -> Result<PathBuf, CliError> {
        if let Err(error) = self.flush() {
            return Err(self.keep_lines(error));
        }
        if self.failed
            && let Some(temporary) = &self.temporary
        {
            cut_to_lines(temporary).map_err(|error| CliError::io(&self.path, &error))?;
        }
        if self.temporary.is_some() || faults::on(Fault::PartialNameOfDevice) {
            self.path = partial_path(&self.path);
        }
        let path = self.path.clone();
        self.finish().map(|()| path)
    }

    /// Renames the file to its final name, replacing an existing file, and makes the name durable. After an error,
    /// that file is unchanged, or complete if only its name could not be synced.
    pub(super) fn finish(mut self) -> Result<(), CliError> {
        self.flush()?;
        self.rename()
    }

    fn rename(&self) -> Result<(), CliError> {
        let Some(temporary) = &self.temporary else { return Ok(()) };
        let renamed =
            fs::rename(temporary, &self.path).and_then(|()| match faults::on(Fault::OutputNameNotSynced) {
                true => Ok(()),
                false => sync_name(&self.path),
            });
        renamed.map_err(|error| CliError::io(&self.path, &error))
    }
}

/// Whether something has this name, also a link to nothing.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Removes the last line of a file if it is not complete. Returns the number of the others.
fn cut_to_lines(path: &Path) -> std::io::Result<usize> {
    let (mut lines, mut end, mut line) = (0, 0, Vec::new());
    let mut file = BufReader::new(File::open(path)?);
    while file.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        lines += 1;
        end += line.len() as u64;
        line.clear();
    }
    File::options().write(true).open(path)?.set_len(end)?;
    Ok(lines)
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
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
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
        assert!(AtomicFile::create(dir.path()).is_err());
    }

    /// Writes a file that another command writes in the meantime. Returns the error, and the file.
    fn written_twice() -> (Option<String>, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = AtomicFile::create(&path).unwrap();
        file.write(b"2\n").unwrap();
        fs::write(&path, "1\n").unwrap();
        let error = file.finish_lines().err().map(|error| format!("{error:?}"));
        (error, fs::read_to_string(path).unwrap())
    }

    #[test]
    fn a_file_that_another_command_wrote_is_not_replaced() {
        let (error, text) = written_twice();
        let error = error.unwrap();
        assert!(error.contains("another command has written this file"), "{error}");
        assert!(error.contains("1 line is in"), "{error}");
        assert_eq!(text, "1\n");
    }

    #[test]
    #[cfg(feature = "faults")]
    fn a_newer_file_that_is_replaced_is_found() {
        let found = faults::with(Fault::NewerFileReplaced, written_twice);
        assert_eq!(found, (None, "2\n".into()));
    }

    /// Finishes a file of lines whose name was taken by a directory. `older`: an incomplete file of an earlier command
    /// exists. Returns the error and the incomplete file.
    fn name_taken(older: bool) -> (String, Option<String>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = AtomicFile::create(&path).unwrap();
        file.write(b"1\n2\n3").unwrap();
        fs::create_dir_all(path.join("taken")).unwrap();
        if older {
            fs::write(partial_path(&path), "0\n").unwrap();
            file.keep_older_partial(true);
        }
        let error = file.finish_lines().unwrap_err();
        assert!(fs::read_dir(&dir).unwrap().count() <= 2, "no temporary file");
        (format!("{error:?}"), fs::read_to_string(partial_path(&path)).ok())
    }

    #[test]
    fn lines_are_kept_if_the_file_cannot_get_its_name() {
        for older in [false, true] {
            let (error, kept) = name_taken(older);
            assert!(error.contains("2 lines are in"), "{error}");
            assert_eq!(kept.as_deref(), Some("1\n2\n"));
        }
    }

    #[test]
    #[cfg(feature = "faults")]
    fn lines_that_are_removed_after_a_failed_rename_are_missed() {
        let (_, kept) = faults::with(Fault::UnrenamedLinesRemoved, || name_taken(false));
        assert_eq!(kept, None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn nothing_is_written_after_a_failed_write() {
        let path = Path::new("/dev/full");
        assert!(path.exists(), "this test needs {}", path.display());
        let mut full = AtomicFile::create(path).unwrap();
        assert!(full.write(&[b'x'; 20_000]).is_err());
        assert!(full.write(b"y").is_err(), "without the first error, this is in the buffer");
    }

    /// The path of what an interrupted command wrote to a device.
    #[cfg(unix)]
    fn kept_of_a_device() -> PathBuf {
        let mut null = AtomicFile::create(Path::new("/dev/null")).unwrap();
        null.write(b"half").unwrap();
        null.keep_partial().unwrap()
    }

    #[test]
    #[cfg(unix)]
    fn an_incomplete_file_gets_another_name_and_a_device_keeps_its_own() {
        assert_eq!(kept_of_a_device(), Path::new("/dev/null"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        let mut file = AtomicFile::create(&path).unwrap();
        file.write(b"half").unwrap();
        let partial = file.keep_partial().unwrap();
        assert_eq!((&partial, path.exists()), (&partial_path(&path), false));
        assert_eq!(fs::read_to_string(&partial).unwrap(), "half");
    }

    #[test]
    #[cfg(all(unix, feature = "faults"))]
    fn a_device_that_is_reported_with_another_name_is_found() {
        let kept = faults::with(Fault::PartialNameOfDevice, kept_of_a_device);
        assert_eq!(kept, Path::new("/dev/null.partial"));
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
