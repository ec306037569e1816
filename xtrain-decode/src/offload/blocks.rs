//! A file of limited size in blocks of fixed size.
use std::io;

use xtrain_tensor::faults::{self, Fault};

use crate::storage::Storage;

/// Bytes of a block.
pub(super) const BLOCK: usize = 64 << 10;

/// A file that is a list of blocks. A free block can be written.
#[derive(Debug)]
pub(super) struct BlockFile {
    storage: Box<dyn Storage>,
    /// Maximum number of blocks.
    limit: usize,
    /// Blocks from this one on were never written.
    end: u32,
    /// Free blocks below `end`. The last one is written first.
    free: Vec<u32>,
}

impl BlockFile {
    /// An empty file of at most `limit` bytes.
    pub(super) fn new(storage: Box<dyn Storage>, limit: usize) -> BlockFile {
        let rounded_up = faults::on(Fault::OffloadLimitRoundedUp);
        let blocks = if rounded_up { limit.div_ceil(BLOCK) } else { limit / BLOCK };
        BlockFile { storage, limit: blocks.min(u32::MAX as usize), end: 0, free: Vec::new() }
    }

    /// Bytes of the blocks that hold something.
    pub(super) fn used(&self) -> usize {
        (self.end as usize - self.free.len()) * BLOCK
    }

    /// Bytes that can still be written.
    pub(super) fn free(&self) -> usize {
        self.limit * BLOCK - self.used()
    }

    /// Writes `bytes` to free blocks, of which there are enough. After an error all of them are free again.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<Vec<u32>> {
        let mut blocks = Vec::with_capacity(bytes.len().div_ceil(BLOCK));
        for part in bytes.chunks(BLOCK) {
            let block = self.free.pop().unwrap_or_else(|| {
                self.end += 1;
                self.end - 1
            });
            blocks.push(block);
            if let Err(error) = self.storage.write_at(part, u64::from(block) * BLOCK as u64) {
                self.release(&blocks);
                return Err(error);
            }
        }
        if faults::on(Fault::OffloadedBlockReused) {
            self.release(&blocks);
        }
        Ok(blocks)
    }

    /// Fills `bytes` from `blocks`.
    pub(super) fn read(&mut self, blocks: &[u32], bytes: &mut [u8]) -> io::Result<()> {
        let mut parts = bytes.chunks_mut(BLOCK).zip(blocks);
        parts.try_for_each(|(part, &block)| self.storage.read_at(part, u64::from(block) * BLOCK as u64))
    }

    /// Makes `blocks` free.
    pub(super) fn release(&mut self, blocks: &[u32]) {
        for &block in blocks.iter().rev() {
            if !(faults::on(Fault::OffloadedBlockReused) && self.free.contains(&block)) {
                self.free.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::disk::Offsets;

    #[test]
    fn blocks_beyond_4_gib_have_places_of_their_own() {
        let offsets = Offsets::default();
        let mut file = BlockFile { end: 70_000, ..BlockFile::new(Box::new(offsets.clone()), usize::MAX) };
        let blocks = file.write(&[1; 10]).unwrap();
        file.read(&blocks, &mut [0; 10]).unwrap();
        assert_eq!((blocks, offsets.take()), (vec![70_000], vec![70_000 * 65_536; 2]));
    }
}
