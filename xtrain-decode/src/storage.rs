//! Bytes at offsets: a file, or host memory.
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::sync::{PoisonError, RwLock};

#[cfg(test)]
pub(crate) mod disk;

/// Bytes that several threads write and read at offsets.
pub(crate) trait Storage: Debug + Send + Sync {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Fills `bytes` from `offset` on.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
}

#[cfg(unix)]
impl Storage for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, bytes, offset)
    }
}

#[cfg(windows)]
impl Storage for File {
    fn write_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_write(self, bytes, offset)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => (bytes, offset) = (&bytes[n..], offset + n as u64),
            }
        }
        Ok(())
    }

    fn read_at(&self, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(self, bytes, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => (bytes, offset) = (&mut bytes[n..], offset + n as u64),
            }
        }
        Ok(())
    }
}

/// A fixed number of bytes in host memory, zeros at the start.
#[derive(Debug)]
pub(crate) struct HostMemory(RwLock<Vec<u8>>);

impl HostMemory {
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`].
    pub(crate) fn new(bytes: usize) -> io::Result<HostMemory> {
        let mut all = Vec::new();
        all.try_reserve_exact(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        all.resize(bytes, 0);
        Ok(HostMemory(RwLock::new(all)))
    }
}

impl Storage for HostMemory {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let to = all.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
        to.ok_or(io::ErrorKind::WriteZero)?.copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let from = all.get(offset as usize..).and_then(|rest| rest.get(..bytes.len()));
        bytes.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
