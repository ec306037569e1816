//! Device memory pool. Freed blocks go to free lists by size class, so after the first step a loop makes no further
//! device allocations.
use std::collections::{BTreeMap, HashMap};

use super::launch::Launcher;
use crate::error::Result;

#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Free blocks by size class, ordered by address, so that a step that requests the same sizes gets the same
    /// blocks. The value is the flush count from which the block is idle ([`super::queue::Queue::idle_from_flush`]).
    free: HashMap<usize, BTreeMap<u64, u64>>,
    pub(super) allocations: u64,
}

impl Memory {
    pub(super) fn allocate(&mut self, launcher: &dyn Launcher, bytes: usize) -> Result<u64> {
        self.allocations += 1;
        launcher.allocate(bytes)
    }

    /// Returns to the device all free blocks that are idle after `flushes` flushes.
    pub(super) fn free_all(&mut self, launcher: &dyn Launcher, flushes: u64) {
        for blocks in self.free.values_mut() {
            blocks.retain(|&at, &mut from| {
                let stays = from > flushes;
                if !stays {
                    launcher.free(at);
                }
                stays
            });
        }
    }

    /// Takes a free block of this size class that is idle after `flushes` flushes.
    pub(super) fn find(&mut self, size_class: usize, flushes: u64) -> Option<u64> {
        let blocks = self.free.get_mut(&size_class)?;
        let at = blocks.iter().find(|&(_, &from)| from <= flushes).map(|(&at, _)| at)?;
        blocks.remove(&at);
        Some(at)
    }

    /// Adds a free block that is idle from flush `from` on.
    pub(super) fn insert(&mut self, size_class: usize, at: u64, from: u64) {
        self.free.entry(size_class).or_default().insert(at, from);
    }
}

/// The block size for `bytes`: at most a quarter larger, or 256 bytes larger. More than `isize::MAX` bytes, which no
/// device has, stay as they are.
pub(super) fn size_class(bytes: usize) -> usize {
    if isize::try_from(bytes).is_err() {
        return bytes;
    }
    let grain = (bytes.max(256).next_power_of_two() / 8).max(256);
    bytes.max(1).div_ceil(grain) * grain
}

#[cfg(test)]
mod tests {
    use super::{Memory, size_class};

    #[test]
    fn a_block_is_idle_after_the_flush_that_follows_its_free() {
        let mut memory = Memory::default();
        memory.free.entry(256).or_default().extend([(1 << 8, 3), (2 << 8, 2)]);
        assert_eq!(memory.find(256, 1), None);
        assert_eq!(memory.find(256, 2), Some(2 << 8));
        assert_eq!(memory.find(256, 2), None);
        assert_eq!(memory.find(256, 7), Some(1 << 8));
    }

    #[test]
    fn a_block_is_at_most_a_quarter_or_256_bytes_larger_than_requested() {
        for bytes in (0..5000).chain([1 << 20, (1 << 20) + 1, 123_456_789, isize::MAX as usize]) {
            let got = size_class(bytes);
            assert!(got >= bytes.max(1) && got <= (bytes + bytes / 4).max(bytes + 256), "{bytes}: {got}");
            assert_eq!(size_class(got), got, "{bytes}");
        }
    }
}
