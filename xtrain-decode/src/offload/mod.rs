//! The offload store: keys and values of preempted sequences, in host memory or in a file of limited size.
//!
//! A sequence that is preempted puts its rows here and takes them back when it continues, instead of computing them
//! again. What the store refuses, or cannot read back, is computed again: no error of the store changes a token.
use std::io;
use std::path::Path;

use crate::cache::KvRows;
use crate::storage::Storage;

mod blocks;
mod file_rows;
#[cfg(test)]
mod tests;

use blocks::BlockFile;
use file_rows::FileRows;

/// Holds rows of preempted sequences, up to a number of bytes. The default holds up to 1 GiB in host memory.
#[derive(Debug)]
pub struct OffloadStore {
    limit: usize,
    used: usize,
    /// `None`: rows are held in host memory.
    file: Option<BlockFile>,
    /// The first error of the file. The store refuses rows from then on.
    error: Option<io::Error>,
}

/// The rows of one sequence in the store. It must be taken or discarded.
#[derive(Debug)]
pub(crate) enum Offloaded {
    InMemory(KvRows),
    InFile(FileRows),
}

impl Default for OffloadStore {
    fn default() -> OffloadStore {
        OffloadStore::in_memory(1 << 30)
    }
}

impl OffloadStore {
    /// A store that holds at most `limit` bytes in host memory.
    pub fn in_memory(limit: usize) -> OffloadStore {
        OffloadStore { limit, used: 0, file: None, error: None }
    }

    /// A store that holds at most `limit` bytes, in whole blocks of 64 KiB, in a file in the directory `dir`. The file
    /// has no name, so a process that is killed leaves nothing.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn in_directory(dir: &Path, limit: usize) -> io::Result<OffloadStore> {
        Ok(OffloadStore::in_storage(Box::new(tempfile::tempfile_in(dir)?), limit))
    }

    fn in_storage(storage: Box<dyn Storage>, limit: usize) -> OffloadStore {
        OffloadStore { limit, used: 0, file: Some(BlockFile::new(storage, limit)), error: None }
    }

    /// Bytes of the rows that it holds: in a file, of their blocks.
    pub fn used(&self) -> usize {
        self.file.as_ref().map_or(self.used, BlockFile::used)
    }

    /// The first error of the file, after which all sequences are computed again. `None`: there was none.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Whether it holds rows in a file.
    pub(crate) fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// Whether `bytes` more bytes fit.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        let free = self.file.as_ref().map_or(self.limit - self.used, BlockFile::free);
        self.error.is_none() && bytes <= free
    }

    /// Holds `rows`, which are in host memory. `None`: they do not fit, or the file has an error.
    pub(crate) fn put(&mut self, rows: KvRows) -> Option<Offloaded> {
        if !self.fits(rows.bytes()) {
            return None;
        }
        let Some(file) = &mut self.file else {
            self.used += rows.bytes();
            return Some(Offloaded::InMemory(rows));
        };
        FileRows::write(&rows, file).map(Offloaded::InFile).map_err(|error| self.error = Some(error)).ok()
    }

    /// Takes rows back. `None`: the file has an error.
    pub(crate) fn take(&mut self, rows: Offloaded) -> Option<KvRows> {
        match (rows, &mut self.file) {
            (Offloaded::InMemory(rows), _) => {
                self.used -= rows.bytes();
                Some(rows)
            }
            (Offloaded::InFile(rows), Some(file)) => {
                let read = rows.read(file);
                read.map_err(|error| self.error.get_or_insert(error)).ok()
            }
            (Offloaded::InFile(_), None) => None,
        }
    }

    /// Drops rows that are not needed any more.
    pub(crate) fn discard(&mut self, rows: Offloaded) {
        match (rows, &mut self.file) {
            (Offloaded::InMemory(rows), _) => self.used -= rows.bytes(),
            (Offloaded::InFile(rows), Some(file)) => rows.discard(file),
            (Offloaded::InFile(_), None) => {}
        }
    }
}
