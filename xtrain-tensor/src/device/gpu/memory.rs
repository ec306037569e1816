//! Device memory: taken from shelves of freed blocks, so that after the first step of a loop the device
//! is asked for none.
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{At, Gpu, Grid, Launcher, Shared, args};
use crate::Result;

/// The free blocks of a device.
#[derive(Debug, Default)]
pub(super) struct Memory {
    shelves: Mutex<Shelves>,
}

#[derive(Debug, Default)]
struct Shelves {
    /// By size, in the order of addresses: a step that asks for the same blocks gets the same ones. With each the flush
    /// of the queue from which on no kernel that waits knows of it ([`super::Queue::quiet_from`]).
    free: HashMap<usize, BTreeMap<u64, u64>>,
    allocations: u64,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Times that the device was asked.
    pub(super) fn allocations(&self) -> u64 {
        self.lock().allocations
    }

    /// Asks the device for a block.
    pub(super) fn allocate(&self, launcher: &dyn Launcher, bytes: usize) -> Result<u64> {
        self.lock().allocations += 1;
        launcher.allocate(bytes)
    }

    /// Gives the device back what is free and quiet after so many flushes.
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

    /// A free block of that size that is quiet after so many flushes.
    fn find(&self, class: usize, flushes: u64) -> Option<u64> {
        let mut shelves = self.lock();
        let blocks = shelves.free.get_mut(&class)?;
        let at = blocks.iter().find(|&(_, &from)| from <= flushes).map(|(&at, _)| at)?;
        blocks.remove(&at);
        Some(at)
    }
}

/// The size of block that serves `bytes`: a quarter larger at most, or 256 bytes.
fn class(bytes: usize) -> usize {
    let grain = (bytes.max(256).next_power_of_two() / 8).max(256);
    bytes.max(1).div_ceil(grain) * grain
}

/// The launch of a kernel that walks over so many bytes, sixteen a thread and turn.
fn over(bytes: usize) -> Grid {
    Grid::blocks([bytes.div_ceil(16 * 256).min(4096), 1, 1], 256)
}

/// A piece of device memory; it goes back to its shelf when dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    at: u64,
    bytes: usize,
    home: Gpu,
}

impl Buffer {
    pub(super) fn take(home: &Gpu, bytes: usize) -> Result<Buffer> {
        Buffer::find(home, bytes, u64::MAX)
    }

    /// One that no kernel of those that wait knows of: the host may write to it before they run. A block that is quiet
    /// stays so, whatever others push and flush meanwhile: who has not taken it cannot name it.
    pub(crate) fn quiet(home: &Gpu, bytes: usize) -> Result<Buffer> {
        Buffer::find(home, bytes, home.shared.queue.counts().flushes)
    }

    fn find(home: &Gpu, bytes: usize, flushes: u64) -> Result<Buffer> {
        let Shared { memory, launcher, .. } = &*home.shared;
        if launcher.exact() {
            return Ok(Buffer { at: home.allocate(bytes)?, bytes, home: home.clone() });
        }
        let class = class(bytes);
        let at = match memory.find(class, flushes) {
            Some(at) => at,
            None => home.allocate(class)?,
        };
        Ok(Buffer { at, bytes, home: home.clone() })
    }

    /// Its address.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Its address as an argument.
    pub(crate) fn arg(&self) -> At {
        At(self.at)
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The device that it belongs to.
    pub(crate) fn home(&self) -> &Gpu {
        &self.home
    }

    /// Another buffer of the same bytes.
    pub(crate) fn duplicate(&self) -> Result<Buffer> {
        let copy = self.home.buffer(self.bytes)?;
        if self.bytes > 0 {
            let args = args![copy.arg(), self.arg(), self.bytes as u64];
            // SAFETY: two buffers of `bytes` bytes each; blocks begin at multiples of 16.
            unsafe { self.home.launch("copy_bytes", over(self.bytes), args)? };
        }
        Ok(copy)
    }

    /// Zeros in all of it, after what waits.
    pub(super) fn clear(&self) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        // SAFETY: a buffer of `bytes` bytes; blocks begin at multiples of 16.
        unsafe { self.home.launch("zero_bytes", over(self.bytes), args![self.arg(), self.bytes as u64]) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.home.shared.launcher.exact() {
            return self.home.shared.launcher.free(self.at);
        }
        let Shared { memory, queue, .. } = &*self.home.shared;
        let from = queue.quiet_from();
        memory.lock().free.entry(class(self.bytes)).or_default().insert(self.at, from);
    }
}

#[cfg(test)]
mod tests {
    use super::{Memory, class};

    #[test]
    fn a_block_is_quiet_after_the_flush_that_follows_and_whatever_comes_later() {
        let memory = Memory::default();
        memory.lock().free.entry(256).or_default().extend([(1 << 8, 3), (2 << 8, 2)]);
        assert_eq!(memory.find(256, 1), None);
        assert_eq!(memory.find(256, 2), Some(2 << 8));
        assert_eq!(memory.find(256, 2), None);
        assert_eq!(memory.find(256, 7), Some(1 << 8));
    }

    #[test]
    fn a_block_is_at_most_a_quarter_larger_than_asked_or_256_bytes() {
        for bytes in (0..5000).chain([1 << 20, (1 << 20) + 1, 123_456_789]) {
            let got = class(bytes);
            assert!(got >= bytes.max(1) && got <= (bytes + bytes / 4).max(bytes + 256), "{bytes}: {got}");
            assert_eq!(class(got), got, "{bytes}");
        }
    }
}
