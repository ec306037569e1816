//! Counters at which the blocks of a launch meet. Zero between launches: the last block to come leaves its own so,
//! and launches run one after another, so all of them share these.
use std::sync::{Mutex, PoisonError};

use super::{At, Gpu, Launcher};
use crate::Result;

/// The counters of a device.
#[derive(Debug, Default)]
pub(super) struct Counters {
    block: Mutex<Option<(u64, usize)>>,
}

impl Gpu {
    /// At least `n` counters, all zero when a launch begins.
    pub(crate) fn counters(&self, n: usize) -> Result<At> {
        let mut block = self.shared.counters.block.lock().unwrap_or_else(PoisonError::into_inner);
        match *block {
            Some((at, size)) if n <= size => return Ok(At(at)),
            _ => (),
        }
        let (size, launcher) = (n.next_power_of_two().max(1024), &*self.shared.launcher);
        let at = self.allocate(4 * size)?;
        // what waits may meet at the old ones
        let zeroed = self.flush().and_then(|()| launcher.zero(at, 4 * size));
        zeroed.inspect_err(|_| launcher.free(at))?;
        if let Some((old, _)) = block.replace((at, size)) {
            launcher.free(old);
        }
        Ok(At(at))
    }
}

impl Counters {
    /// Gives the device its memory back.
    pub(super) fn free_all(&self, launcher: &dyn Launcher) {
        if let Some((at, _)) = self.block.lock().unwrap_or_else(PoisonError::into_inner).take() {
            launcher.free(at);
        }
    }
}
