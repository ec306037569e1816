//! Names and files that survive a power failure.
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::model::durable::{parent, sync_dir};
use crate::tensor::faults::{self, Fault};

/// Makes the name of `path` durable.
pub(crate) fn sync_name(path: &Path) -> io::Result<()> {
    if faults::on(Fault::RunNamesNotSynced) { Ok(()) } else { sync_dir(parent(path)) }
}

/// Creates a directory in an existing one, durably.
pub(super) fn create_dir(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    sync_name(path)
}

/// Creates a directory and missing parent directories, durably. The directory may exist.
pub(super) fn ensure_dir(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    if !parent(path).exists() {
        ensure_dir(parent(path))?;
    }
    match create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        done => done,
    }
}

/// Removes a file durably if it exists.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_name(path),
    }
}

/// Replaces a file atomically. It is either complete or unchanged, also after a power failure.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    let written =
        file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        // the error of the write is the one to report
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_name(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        write(&path, b"a").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a");
        // a directory with a file cannot be replaced
        let other = dir.path().join("data.json");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("x"), "").unwrap();
        assert!(write(&other, b"a").is_err());
        let mut names: Vec<_> =
            dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["config.toml", "data.json"]);
    }
}
