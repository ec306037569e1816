//! Device memory pool. Freed blocks go to free lists by size class, so after the first step a loop makes no further
//! device allocations.
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{At, Gpu, Grid, Launcher, Shared, args};
use crate::Result;

/// The memory pool of a device.
#[derive(Debug, Default)]
pub(super) struct Memory {
    lists: Mutex<FreeLists>,
}

#[derive(Debug, Default)]
struct FreeLists {
    /// Free blocks by size class, ordered by address, so that a step that requests the same sizes gets the same blocks.
    /// The value is the flush count from which the block is idle ([`super::Queue::idle_from_flush`]).
    free: HashMap<usize, BTreeMap<u64, u64>>,
    allocations: u64,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, FreeLists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of device allocations.
    pub(super) fn allocations(&self) -> u64 {
        self.lock().allocations
    }

    /// Allocates a block from the device.
    pub(super) fn allocate(&self, launcher: &dyn Launcher, bytes: usize) -> Result<u64> {
        self.lock().allocations += 1;
        launcher.allocate(bytes)
    }

    /// Returns to the device all free blocks that are idle after `flushes` flushes.
    pub(super) fn free_all(&self, launcher: &dyn Launcher, flushes: u64) {
        for blocks in self.lock().free.values_mut() {
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
    fn find(&self, size_class: usize, flushes: u64) -> Option<u64> {
        let mut lists = self.lock();
        let blocks = lists.free.get_mut(&size_class)?;
        let at = blocks.iter().find(|&(_, &from)| from <= flushes).map(|(&at, _)| at)?;
        blocks.remove(&at);
        Some(at)
    }
}

/// The block size for `bytes`: at most a quarter larger, or 256 bytes larger.
fn size_class(bytes: usize) -> usize {
    let grain = (bytes.max(256).next_power_of_two() / 8).max(256);
    bytes.max(1).div_ceil(grain) * grain
}

/// Grid of a kernel that strides over `bytes` bytes, 16 bytes per thread and iteration.
fn grid_over(bytes: usize) -> Grid {
    Grid::blocks([bytes.div_ceil(16 * 256).min(4096), 1, 1], 256)
}

/// An allocation in device memory. Dropping it returns the block to the pool.
#[derive(Debug)]
pub(crate) struct Buffer {
    at: u64,
    bytes: usize,
    home: Gpu,
}

impl Buffer {
    pub(super) fn acquire(home: &Gpu, bytes: usize) -> Result<Buffer> {
        Buffer::find(home, bytes, u64::MAX)
    }

    /// Acquires a block that no queued kernel uses, so the host may write to it immediately. A free block stays idle
    /// whatever other threads queue: only its owner can pass its address to a kernel.
    pub(super) fn acquire_idle(home: &Gpu, bytes: usize) -> Result<Buffer> {
        Buffer::find(home, bytes, home.shared.queue.counts().flushes)
    }

    fn find(home: &Gpu, bytes: usize, flushes: u64) -> Result<Buffer> {
        let Shared { memory, launcher, .. } = &*home.shared;
        if launcher.exact() {
            return Ok(Buffer { at: home.allocate(bytes)?, bytes, home: home.clone() });
        }
        let block = size_class(bytes);
        let at = match memory.find(block, flushes) {
            Some(at) => at,
            None => home.allocate(block)?,
        };
        Ok(Buffer { at, bytes, home: home.clone() })
    }

    /// The device address.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The device address as a kernel argument.
    pub(crate) fn arg(&self) -> At {
        At(self.at)
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The device that owns the memory.
    pub(crate) fn home(&self) -> &Gpu {
        &self.home
    }

    /// Returns a copy of the buffer.
    pub(crate) fn duplicate(&self) -> Result<Buffer> {
        let copy = self.home.buffer(self.bytes)?;
        if self.bytes > 0 {
            let args = args![copy.arg(), self.arg(), self.bytes as u64];
            // SAFETY: two buffers of `bytes` bytes each; blocks begin at multiples of 16.
            unsafe { self.home.launch("copy_bytes", grid_over(self.bytes), args)? };
        }
        Ok(copy)
    }

    /// Queues a kernel that zeroes the buffer.
    pub(super) fn clear(&self) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        // SAFETY: a buffer of `bytes` bytes; blocks begin at multiples of 16.
        unsafe { self.home.launch("zero_bytes", grid_over(self.bytes), args![self.arg(), self.bytes as u64]) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.home.shared.launcher.exact() {
            return self.home.shared.launcher.free(self.at);
        }
        let Shared { memory, queue, .. } = &*self.home.shared;
        let from = queue.idle_from_flush();
        memory.lock().free.entry(size_class(self.bytes)).or_default().insert(self.at, from);
    }
}

#[cfg(test)]
mod tests {
    use super::{Memory, size_class};

    #[test]
    fn a_block_is_idle_after_the_flush_that_follows_its_free() {
        let memory = Memory::default();
        memory.lock().free.entry(256).or_default().extend([(1 << 8, 3), (2 << 8, 2)]);
        assert_eq!(memory.find(256, 1), None);
        assert_eq!(memory.find(256, 2), Some(2 << 8));
        assert_eq!(memory.find(256, 2), None);
        assert_eq!(memory.find(256, 7), Some(1 << 8));
    }

    #[test]
    fn a_block_is_at_most_a_quarter_or_256_bytes_larger_than_requested() {
        for bytes in (0..5000).chain([1 << 20, (1 << 20) + 1, 123_456_789]) {
            let got = size_class(bytes);
            assert!(got >= bytes.max(1) && got <= (bytes + bytes / 4).max(bytes + 256), "{bytes}: {got}");
            assert_eq!(size_class(got), got, "{bytes}");
        }
    }
}
