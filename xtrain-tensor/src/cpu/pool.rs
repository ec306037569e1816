//! Worker threads over independent outputs.

/// A fork-join pool. Outputs are split among threads, reductions never.
#[derive(Debug)]
pub(crate) struct Pool {
    threads: usize,
}

impl Pool {
    /// A pool of `threads` threads, the caller's among them.
    pub(crate) fn new(threads: usize) -> Pool {
        Pool { threads }
    }

    /// Worker threads, the caller's among them.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }
}
