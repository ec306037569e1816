//! Device memory: taken from shelves of freed blocks, so that after the first step of a loop the device
//! is asked for none.
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{At, Gpu, Launcher};
use crate::Result;

/// The free blocks of a device.
#[derive(Debug, Default)]
pub(super) struct Memory {
    shelves: Mutex<Shelves>,
}

#[derive(Debug, Default)]
struct Shelves {
    /// By size, in the order of addresses: a step that asks for the same blocks gets the same ones.
    free: HashMap<usize, BTreeSet<u64>>,
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

    /// Gives the device back all that is free.
    pub(super) fn free_all(&self, launcher: &dyn Launcher) {
        for (_, blocks) in self.lock().free.drain() {
            blocks.into_iter().for_each(|at| launcher.free(at));
        }
    }
}

/// The size of block that serves `bytes`: a quarter larger at most, or 256 bytes.
fn class(bytes: usize) -> usize {
    let grain = (bytes.max(256).next_power_of_two() / 8).max(256);
    bytes.max(1).div_ceil(grain) * grain
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
        let (memory, launcher) = (&home.shared.memory, &*home.shared.launcher);
        if launcher.exact() {
            return Ok(Buffer { at: home.allocate(bytes)?, bytes, home: home.clone() });
        }
        let class = class(bytes);
        let kept = memory.lock().free.get_mut(&class).and_then(BTreeSet::pop_first);
        let at = match kept {
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
        // SAFETY: two live buffers of `bytes` bytes each.
        unsafe { self.home.copy(copy.at, self.at, self.bytes)? };
        Ok(copy)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.home.shared.launcher.exact() {
            return self.home.shared.launcher.free(self.at);
        }
        self.home.shared.memory.lock().free.entry(class(self.bytes)).or_default().insert(self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::class;

    #[test]
    fn a_block_is_at_most_a_quarter_larger_than_asked_or_256_bytes() {
        for bytes in (0..5000).chain([1 << 20, (1 << 20) + 1, 123_456_789]) {
            let got = class(bytes);
            assert!(got >= bytes.max(1) && got <= (bytes + bytes / 4).max(bytes + 256), "{bytes}: {got}");
            assert_eq!(class(got), got, "{bytes}");
        }
    }
}
