//! Standard output, and files that are written atomically.
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::common::Force;
use super::exit::{CliError, Exit};
use crate::model::temporary::temporary_path;
use crate::run::sync_name;
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

/// Writes `value` to standard output as JSON on one line.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).expect("a struct of numbers and strings is JSON");
    print(text + "\n")
}

/// Checks that a command may write its output file: it does not exist, or `--force` replaces it. Pipes, devices and
/// open files such as `/dev/stdout` are written, not replaced. Refuses paths of directories, and `-`, which would be a
/// file of that name: commands for which it is standard output do not call this function for it.
pub(super) fn check_absent(path: &Path, force: Force) -> Result<(), CliError> {
    if path.as_os_str() == "-" {
        return Err(CliError::new(Exit::Usage, "expected the path of an output file, found -")
            .hint("./- is a file of this name"));
    }
    if names_directory(path) {
        let message = format_args!("expected the path of an output file, found \"{}\"", path.display());
        return Err(CliError::new(Exit::Usage, message).hint("add the name of a file"));
    }
    if force.force || !path.is_file() || is_open_file(path) || faults::on(Fault::OverwriteWithoutForce) {
        return Ok(());
    }
    let message = format_args!("{}: already exists", path.display());
    Err(CliError::new(Exit::Usage, message).hint("choose another path, or replace it with --force"))
}

/// Whether a path is that of a directory, or can only become one: it ends with a separator, `.` or `..`.
fn names_directory(path: &Path) -> bool {
    let text = path.as_os_str().to_string_lossy();
    let last = text.rsplit(std::path::is_separator).next().unwrap_or_default();
    ["", ".", ".."].contains(&last) || path.is_dir()
}

/// Checks that a command which keeps an incomplete output file as `NAME.partial` may write it: it does not exist, or
/// `--force` replaces it.
pub(super) fn check_partial_absent(path: &Path, force: Force) -> Result<(), CliError> {
    let partial = partial_of(path);
    if force.force || partial.symlink_metadata().is_err() {
        return Ok(());
    }
    let message = format_args!("{}: already exists", partial.display());
    let hint =
        "it holds results of an interrupted command: continue it with --resume, or replace it with --force";
    Err(CliError::new(Exit::Usage, message).hint(hint))
}

/// The path of the incomplete file of a command that writes `path`.
pub(super) fn partial_of(path: &Path) -> PathBuf {
    partial_path(&target_of(path))
}

/// The path of an incomplete output file.
fn partial_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    path.with_file_name(name)
}

/// The path that is written: links are followed, except those to open files.
fn target_of(path: &Path) -> PathBuf {
    let followed = if is_open_file(path) { None } else { fs::canonicalize(path).ok() };
    followed.unwrap_or_else(|| path.to_path_buf())
}

/// Whether `path` names a pipe, a device or an open file. Commands write into it, and have no incomplete file.
pub(super) fn is_written_directly(path: &Path) -> bool {
    let target = target_of(path);
    is_open_file(path) || (target.exists() && !target.is_file())
}

/// Whether the path names an open file of this process. The file behind it may be a regular one.
fn is_open_file(path: &Path) -> bool {
    let directories = [Path::new("/dev/fd"), Path::new("/proc/self/fd")];
    [STDOUT, STDERR].contains(&path.to_str().unwrap_or_default())
        || path.parent().is_some_and(|parent| directories.contains(&parent))
}

const STDOUT: &str = "/dev/stdout";
const STDERR: &str = "/dev/stderr";

/// Opens a pipe, a device or an open file for writing. A regular file behind it keeps its content.
fn open_directly(path: &Path) -> std::io::Result<File> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        // A duplicate shares its position with what this process prints.
        let number = path.file_name().filter(|_| is_open_file(path)).unwrap_or_default();
        if number == "stdout" || number == "1" {
            return Ok(std::io::stdout().as_fd().try_clone_to_owned()?.into());
        }
        if number == "stderr" || number == "2" {
            return Ok(std::io::stderr().as_fd().try_clone_to_owned()?.into());
        }
    }
    File::options().append(true).open(path)
}

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

    #[test]
    fn paths_of_directories_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "old").unwrap();
        let force = Force { force: true };
        for name in ["a/", "a/.", "new/", "new/.", "..", "new/..", "", "."] {
            let error = check_absent(&dir.path().join(name), force).unwrap_err().to_string();
            assert!(error.contains("expected the path of an output file, found \""), "{name}: {error}");
        }
        check_absent(&dir.path().join("a"), force).unwrap();
        check_absent(&dir.path().join("new"), Force { force: false }).unwrap();
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
