//! The file operations that saving and loading use, as a trait so that tests can simulate power failures.
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use xtrain_tensor::faults::{self, Fault};

use crate::durable;

/// What a path refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Missing,
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A pipe, a device, a socket.
    Other,
}

/// File operations with the durability that POSIX guarantees: bytes survive a power failure after
/// [`WriteFile::sync`], names after [`FileSystem::sync_dir`]. Implemented by [`RealFs`] and by the tests only: not part
/// of the public interface.
pub trait FileSystem: Send + Sync {
    /// What `path` refers to. Follows symbolic links.
    fn kind(&self, path: &Path) -> io::Result<Kind>;

    /// What `path` itself refers to: a symbolic link is [`Kind::Other`].
    fn kind_unfollowed(&self, path: &Path) -> io::Result<Kind>;

    /// The names in a directory, sorted. Skips names that are not UTF-8.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Opens a regular file for reading from its start.
    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>>;

    /// Creates a directory inside an existing one. Fails with `AlreadyExists` if the name exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Creates a file. Fails with `AlreadyExists` if the name exists.
    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>>;

    /// Renames a file or directory atomically.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Acquires the lock file `path` until the returned value is dropped or the process ends. Fails with `WouldBlock`
    /// if the lock is held elsewhere.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>>;
}

/// An acquired lock.
pub trait Lock: Send {}

/// A file that is read sequentially.
pub trait ReadFile: Send {
    /// The length of the file in bytes when it was opened.
    fn length(&self) -> u64;

    /// Fills `buffer` with the next bytes. Fails with `UnexpectedEof` if fewer bytes are left.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<()>;
}

/// A file that is written sequentially.
pub trait WriteFile: Send {
    /// Appends all of `bytes`.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes the bytes durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// The operating system's file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFs;

struct RealRead {
    file: File,
    length: u64,
}

/// A locked file. Closing it is not enough: a process that is being started has a copy of the descriptor until it
/// executes its program, and a lock is held until the last copy is closed.
struct RealLock(File);

impl Lock for RealLock {}

impl Drop for RealLock {
    fn drop(&mut self) {
        if !faults::on(Fault::LockOfCopiesKept) {
            // an error leaves what closing the file does
            let _ = self.0.unlock();
        }
    }
}

/// Classifies the result of a metadata query.
fn kind(metadata: io::Result<fs::Metadata>) -> io::Result<Kind> {
    match metadata {
        Ok(metadata) if metadata.is_file() => Ok(Kind::File),
        Ok(metadata) if metadata.is_dir() => Ok(Kind::Directory),
        Ok(_) => Ok(Kind::Other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kind::Missing),
        Err(error) => Err(error),
    }
}

impl FileSystem for RealFs {
    fn kind(&self, path: &Path) -> io::Result<Kind> {
        kind(fs::metadata(path))
    }

    fn kind_unfollowed(&self, path: &Path) -> io::Result<Kind> {
        kind(fs::symlink_metadata(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(Box::new(RealRead { file, length }))
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        Ok(Box::new(File::create_new(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if faults::on(Fault::FilesNotSynced) { Ok(()) } else { durable::sync_dir(dir) }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(RealLock(file))),
            Err(fs::TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }
}

impl ReadFile for RealRead {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(buffer)
    }
}

impl WriteFile for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        if faults::on(Fault::FilesNotSynced) { Ok(()) } else { self.sync_all() }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A path that cannot be inspected is not a missing one, which a caller may create.
    #[test]
    fn only_a_path_that_does_not_exist_is_missing() {
        let program = std::env::current_exe().unwrap();
        assert_eq!(RealFs.kind(&program).unwrap(), Kind::File);
        assert_eq!(RealFs.kind(&program.with_file_name("nothing")).unwrap(), Kind::Missing);
        let error = RealFs.kind(&program.join("below a file")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }
}
