//! Counters that the blocks of a launch use to find the last block. They are zero between launches: the last block
//! resets its counter. Launches run one after another, so all of them share one array.
use super::launch::{At, Launcher};
use super::stream::Stream;
use crate::error::Result;

/// The block counters of a device: their address, and how many there are.
#[derive(Debug, Default)]
pub(super) struct Counters(Option<(u64, usize)>);

impl Counters {
    pub(super) fn address(&mut self, stream: &Stream, n: usize) -> Result<At> {
        if let Some((at, _)) = self.0.filter(|&(_, size)| n <= size) {
            return Ok(At(at));
        }
        let (size, launcher) = (n.next_power_of_two().max(1024), stream.launcher());
        let at = stream.allocate(4 * size)?;
        // queued kernels may use the old counters
        let zeroed = stream.flush().and_then(|()| launcher.upload(at, &vec![0; 4 * size]));
        zeroed.inspect_err(|_| launcher.free(at))?;
        if let Some((old, _)) = self.0.replace((at, size)) {
            launcher.free(old);
        }
        Ok(At(at))
    }

    pub(super) fn free_all(&mut self, launcher: &dyn Launcher) {
        if let Some((at, _)) = self.0.take() {
            launcher.free(at);
        }
    }
}
