//! Counters that the blocks of a launch use to find the last block. They are zero between launches: the last block resets
//! its counter. Launches run one after another, so all of them share one array.
use std::sync::{Mutex, PoisonError};

use super::{At, Gpu, Launcher};
use crate::Result;

/// The block counters of a device.
#[derive(Debug, Default)]
pub(super) struct Counters {
    block: Mutex<Option<(u64, usize)>>,
}

impl Gpu {
    /// Returns at least `n` counters, all zero at the beginning of a launch.
    pub(crate) fn counters(&self, n: usize) -> Result<At> {
        let mut block = self.shared.counters.block.lock().unwrap_or_else(PoisonError::into_inner);
        match *block {
            Some((at, size)) if n <= size => return Ok(At(at)),
            _ => (),
        }
        let (size, launcher) = (n.next_power_of_two().max(1024), &*self.shared.launcher);
        let at = self.allocate(4 * size)?;
        // queued kernels may use the old counters
        let zeroed = self.flush().and_then(|()| launcher.zero(at, 4 * size));
        zeroed.inspect_err(|_| launcher.free(at))?;
        if let Some((old, _)) = block.replace((at, size)) {
            launcher.free(old);
        }
        Ok(At(at))
    }
}

impl Counters {
    /// Returns the memory to the device.
    pub(super) fn free_all(&self, launcher: &dyn Launcher) {
        if let Some((at, _)) = self.block.lock().unwrap_or_else(PoisonError::into_inner).take() {
            launcher.free(at);
        }
    }
}
