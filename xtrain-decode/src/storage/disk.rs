//! A file in memory that fails on request, for tests.
use std::io;
use std::sync::{Arc, Mutex};

use super::Storage;

/// A file in memory that fails on request.
#[derive(Debug, Default, Clone)]
pub(crate) struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    fails: Arc<Mutex<Option<io::ErrorKind>>>,
}

impl Disk {
    /// From now on every call fails with `kind`, or none does.
    pub(crate) fn fail(&self, kind: Option<io::ErrorKind>) {
        *self.fails.lock().unwrap() = kind;
    }

    /// Changes a bit of a byte.
    pub(crate) fn damage(&self, at: usize) {
        self.bytes.lock().unwrap()[at] ^= 1;
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.lock().unwrap().len()
    }

    fn check(&self) -> io::Result<()> {
        self.fails.lock().unwrap().map_or(Ok(()), |kind| Err(kind.into()))
    }
}

impl Storage for Disk {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check()?;
        let (mut all, offset) = (self.bytes.lock().unwrap(), offset as usize);
        let len = all.len().max(offset + bytes.len());
        all.resize(len, 0);
        all[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.check()?;
        bytes.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..bytes.len()]);
        Ok(())
    }
}

/// Records where it is written and read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Offsets(Arc<Mutex<Vec<u64>>>);

impl Offsets {
    pub(crate) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Storage for Offsets {
    fn write_at(&self, _bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.lock().unwrap().push(offset);
        Ok(())
    }

    fn read_at(&self, _bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.lock().unwrap().push(offset);
        Ok(())
    }
}
