//! The launch queue. Kernels are queued until a submission or a synchronization. A sequence of kernels is launched
//! one by one the first time; when the same kernels are queued again, it becomes a CUDA graph. A step of a rollout is
//! then one driver call, a training step one per layer and direction: its layers share a graph, whose arguments are
//! updated for each. Buffers and index lists get the same addresses step after step ([`super::memory`],
//! [`super::indices`]), so a graph is launched unchanged except for the few arguments that differ between steps.
#[cfg(all(test, xtrain_emu))]
use std::collections::BTreeMap;
use std::mem;

use super::launch::{Arg, Call, Graph, Grid, Launcher};
use super::launch_options::LaunchOptions;
use crate::error::{Error, Result};
use crate::faults::{self, Fault};

/// Minimum number of calls for a graph; shorter sequences are launched one by one.
const MIN_GRAPH_NODES: usize = 4;
/// Maximum number of queued calls; a further one flushes the queue.
const MAX_PENDING: usize = 1024;
/// Maximum number of cached kernel sequences; the least recently used one is evicted.
const MAX_GRAPHS: usize = 16;

/// Queued kernel calls, in order, and the graphs of earlier ones.
#[derive(Default)]
pub(super) struct Queue {
    pending: Calls,
    cached: Vec<CachedGraph>,
    /// Non-empty flushes.
    pub(super) flushes: u64,
    pub(super) graphs: u64,
    pub(super) graph_node_updates: u64,
    /// With `options.sync`: how often each kernel was launched.
    #[cfg(all(test, xtrain_emu))]
    pub(super) launched: BTreeMap<&'static str, u64>,
    options: LaunchOptions,
}

/// A sequence of calls with their arguments in one flat list.
#[derive(Debug, Default, Clone)]
struct Calls {
    /// Kernel, grid, and end offset of its arguments.
    calls: Vec<(&'static str, Grid, usize)>,
    args: Vec<Arg>,
}

impl Calls {
    fn push(&mut self, Call { kernel, grid, args }: Call<'_>) {
        self.args.extend_from_slice(args);
        self.calls.push((kernel, grid, self.args.len()));
    }

    fn at(&self, i: usize) -> Call<'_> {
        let (kernel, grid, end) = self.calls[i];
        let start = if i == 0 { 0 } else { self.calls[i - 1].2 };
        Call { kernel, grid, args: &self.args[start..end] }
    }

    fn iter(&self) -> impl Iterator<Item = Call<'_>> {
        (0..self.calls.len()).map(|i| self.at(i))
    }

    fn same_kernels(&self, other: &Calls) -> bool {
        let kernel = |&(kernel, _, end): &(&'static str, Grid, usize)| (kernel, end);
        self.calls.iter().map(kernel).eq(other.calls.iter().map(kernel))
    }

    fn clear(&mut self) {
        self.calls.clear();
        self.args.clear();
    }
}

/// A sequence of calls that was submitted before. Its graph is built at the second submission.
struct CachedGraph {
    last: Calls,
    graph: Option<Box<dyn Graph>>,
    used: u64,
}

impl Queue {
    pub(super) fn new(options: LaunchOptions) -> Queue {
        Queue { options, ..Queue::default() }
    }

    /// Drops all queued kernels and cached graphs.
    pub(super) fn close(&mut self) {
        *self = Queue::new(self.options);
    }

    /// Returns the number of flushes after which no queued kernel refers to a block that is freed now: kernels that
    /// use it were queued before and have been submitted by then. The current count if the queue is empty.
    pub(super) fn idle_from_flush(&self) -> u64 {
        self.flushes + u64::from(!self.pending.calls.is_empty())
    }

    /// Queues a call. Flushes first if the queue is full, and afterwards if each kernel is awaited.
    ///
    /// # Safety
    /// As [`Launcher::launch`], and the memory behind the pointers stays valid until the next [`Queue::flush`].
    pub(super) unsafe fn push(&mut self, launcher: &dyn Launcher, call: Call<'_>) -> Result<()> {
        if self.pending.calls.len() >= MAX_PENDING {
            self.flush(launcher)?;
        }
        self.pending.push(call);
        if self.options.sync {
            #[cfg(all(test, xtrain_emu))]
            self.launched.entry(call.kernel).and_modify(|n| *n += 1).or_insert(1);
            self.flush(launcher)?;
        }
        Ok(())
    }

    /// Submits all queued calls. After an error the queue is empty.
    pub(super) fn flush(&mut self, launcher: &dyn Launcher) -> Result<()> {
        if self.pending.calls.is_empty() {
            return Ok(());
        }
        self.flushes += 1;
        let mut calls = mem::take(&mut self.pending);
        let result = self.issue(launcher, &calls);
        calls.clear();
        self.pending = calls;
        result
    }

    fn issue(&mut self, launcher: &dyn Launcher, calls: &Calls) -> Result<()> {
        let LaunchOptions { sync, graphs, .. } = self.options;
        if sync {
            return launch_and_wait(launcher, calls);
        }
        if calls.calls.len() < MIN_GRAPH_NODES || !graphs && !faults::on(Fault::GraphsNotDisabled) {
            return launch_each(launcher, calls);
        }
        let Some(at) = self.cached.iter().position(|cached| cached.last.same_kernels(calls)) else {
            if self.cached.len() == MAX_GRAPHS {
                let oldest = self.cached.iter().enumerate().min_by_key(|(_, cached)| cached.used);
                let oldest = oldest.map_or(0, |(at, _)| at);
                self.cached.swap_remove(oldest);
            }
            self.cached.push(CachedGraph { last: calls.clone(), graph: None, used: self.flushes });
            return launch_each(launcher, calls);
        };
        // on an error the graph is dropped from the cache
        let mut cached = self.cached.swap_remove(at);
        self.graph_node_updates += cached.update(launcher, calls)?;
        cached.used = self.flushes;
        // SAFETY: as promised for each call when it was pushed.
        unsafe { cached.graph.as_ref().expect("built or updated above").run()? };
        self.graphs += 1;
        self.cached.push(cached);
        Ok(())
    }
}

impl CachedGraph {
    /// Builds the graph, or updates it to these calls. Returns the number of updated nodes.
    fn update(&mut self, launcher: &dyn Launcher, calls: &Calls) -> Result<u64> {
        let mut updated = 0;
        match &mut self.graph {
            // SAFETY: as promised for each call when it was pushed.
            empty @ None => *empty = Some(unsafe { launcher.graph(&Vec::from_iter(calls.iter()))? }),
            Some(_) if faults::on(Fault::StaleGraphArguments) => (),
            Some(graph) => {
                let pairs = self.last.iter().zip(calls.iter()).enumerate();
                for (at, (_, new)) in pairs.filter(|(_, (old, new))| old != new) {
                    // SAFETY: as above.
                    unsafe { graph.set(at, new)? };
                    updated += 1;
                }
            }
        }
        self.last.clone_from(calls);
        Ok(updated)
    }
}

/// Launches each kernel and waits for it. An error names the kernel, its grid and its block.
fn launch_and_wait(launcher: &dyn Launcher, calls: &Calls) -> Result<()> {
    let run = |call: Call<'_>| {
        // SAFETY: as promised for the call when it was pushed.
        unsafe { launcher.launch(call)? };
        if faults::on(Fault::LaunchNotAwaited) { Ok(()) } else { launcher.wait() }
    };
    let named = |call: Call<'_>, error: Error| match error {
        Error::Device { what, source } => Error::Device { what: format!("{call}: {what}"), source },
        other => other,
    };
    calls.iter().try_for_each(|call| run(call).map_err(|error| named(call, error)))
}

fn launch_each(launcher: &dyn Launcher, calls: &Calls) -> Result<()> {
    // SAFETY: as promised for each call when it was pushed.
    calls.iter().try_for_each(|call| unsafe { launcher.launch(call) })
}
