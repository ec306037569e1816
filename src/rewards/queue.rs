//! The output of reward processes that was read and not yet processed.
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use super::process::{Output, Outputs};

/// Number of reads of all processes that may wait in memory. A read has at most one long line, or 64 KiB of lines.
const READS: usize = 16;

/// The output of all processes. A read wakes the receiver once for all of its lines.
#[derive(Debug)]
pub(super) struct OutputQueue {
    reads: Receiver<Outputs>,
    /// The rest of the last read.
    rest: VecDeque<(usize, Output)>,
}

impl OutputQueue {
    /// An empty queue, and its sender.
    pub(super) fn new() -> (SyncSender<Outputs>, OutputQueue) {
        let (sender, reads) = sync_channel(READS);
        (sender, OutputQueue { reads, rest: VecDeque::new() })
    }

    /// The next output, if it was already read.
    pub(super) fn try_next(&mut self) -> Option<(usize, Output)> {
        if self.rest.is_empty() {
            self.rest.extend(self.reads.try_recv().ok()?);
        }
        self.rest.pop_front()
    }

    /// The next output.
    ///
    /// # Errors
    /// There is none within `limit`, or no process is read any more.
    pub(super) fn next(&mut self, limit: Duration) -> Result<(usize, Output), RecvTimeoutError> {
        if self.rest.is_empty() {
            self.rest.extend(self.reads.recv_timeout(limit)?);
        }
        self.rest.pop_front().ok_or(RecvTimeoutError::Timeout)
    }
}
