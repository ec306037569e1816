//! The file operations that saving and loading use: a small seam, so that tests can cut the power.
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// What stands at a path.
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

/// The operations on files, each as durable as POSIX promises and no more: bytes survive a power cut after
/// [`WriteFile::sync`], names after [`FileSystem::sync_dir`].
pub trait FileSystem: Send + Sync {
    /// What stands at `path`; links are followed.
    ///
    /// # Errors
    /// What the system says, other than "not found".
    fn kind(&self, path: &Path) -> io::Result<Kind>;

    /// What stands at `path` itself: a link is [`Kind::Other`].
    ///
    /// # Errors
    /// What the system says, other than "not found".
    fn kind_unfollowed(&self, path: &Path) -> io::Result<Kind>;

    /// The names in a directory, sorted; names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Opens a regular file to be read from its start.
    ///
    /// # Errors
    /// What the system says.
    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>>;

    /// Creates a directory inside an existing one.
    ///
    /// # Errors
    /// What the system says; `AlreadyExists` if the name is taken.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Creates a file.
    ///
    /// # Errors
    /// What the system says; `AlreadyExists` if the name is taken.
    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>>;

    /// Gives a file or directory another name, atomically.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// What the system says.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the system says.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// What the system says.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the lock that a file stands for, and holds it until the value is dropped or the process ends.
    ///
    /// # Errors
    /// `WouldBlock` if another holds it; otherwise what the system says.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>>;
}

/// A lock that is held.
pub trait Lock: Send {}

/// A file that is being read, front to back.
pub trait ReadFile: Send {
    /// The file's length in bytes when it was opened.
    fn length(&self) -> u64;

    /// Fills `buffer` with the next bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` if fewer are left; otherwise what the system says.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<()>;
}

/// A file that is being written, front to back.
pub trait WriteFile: Send {
    /// Appends all of `bytes`.
    ///
    /// # Errors
    /// What the system says.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes the bytes durable.
    ///
    /// # Errors
    /// What the system says.
    fn sync(&mut self) -> io::Result<()>;
}

/// The file system of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFs;

struct RealRead {
    file: File,
    length: u64,
}

struct RealLock {
    _file: File,
}

impl Lock for RealLock {}

/// The kind of what the system found.
fn kind(found: io::Result<fs::Metadata>) -> io::Result<Kind> {
    match found {
        Ok(found) if found.is_file() => Ok(Kind::File),
        Ok(found) if found.is_dir() => Ok(Kind::Directory),
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
        #[cfg(unix)]
        File::open(dir)?.sync_all()?;
        // Elsewhere a directory cannot be opened as a file; renames are as durable as that system makes them.
        #[cfg(not(unix))]
        let _ = dir;
        Ok(())
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
            Ok(()) => Ok(Box::new(RealLock { _file: file })),
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
        self.sync_all()
    }
}
