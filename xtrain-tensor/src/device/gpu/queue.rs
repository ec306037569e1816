//! Kernels wait here until the host must see what they did, and go to the device together: one by one the first time,
//! as a graph once the same kernels came again. A step of a rollout, or of training, is then one call of the driver.
//! Buffers and lists come to the same addresses step after step ([`super::memory`], [`super::indices`]), so a graph
//! runs again as it is, but for the few arguments that a step changes.
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Arg, Call, Graph, Grid, Launcher};
use crate::{
    Result,
    faults::{self, Fault},
};

/// Fewer calls are not worth a graph.
const FEW: usize = 4;
/// More do not wait.
const MOST: usize = 1024;
/// Sequences of kernels that are remembered.
const KEPT: usize = 16;

/// Calls in order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: Calls,
    kept: Vec<Kept>,
    counts: Counts,
}

/// What has gone to the device.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    /// Times that what waited went.
    pub(super) flushes: u64,
    /// Graphs run.
    pub(super) graphs: u64,
    /// Calls inside of a graph whose arguments were changed before it ran.
    pub(super) graph_node_updates: u64,
}

/// Calls, their arguments in one list.
#[derive(Debug, Default, Clone)]
struct Calls {
    /// Kernel, grid and where its arguments end.
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

/// Calls that came before, and their graph from the second time on.
#[derive(Debug)]
struct Kept {
    last: Calls,
    graph: Option<Box<dyn Graph>>,
    used: u64,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// From so many flushes on, no kernel that waits knows of a block of memory that is freed now: those that do were
    /// pushed before, and have gone by then. Now, where none waits.
    pub(super) fn quiet_from(&self) -> u64 {
        let inner = self.lock();
        inner.counts.flushes + u64::from(!inner.waiting.calls.is_empty())
    }

    /// Takes a call; those before it go now if they are many.
    ///
    /// # Safety
    /// As [`Launcher::launch`], and what the pointers hold stays until the next [`Queue::flush`].
    pub(super) unsafe fn push(&self, launcher: &dyn Launcher, call: Call<'_>) -> Result<()> {
        let mut inner = self.lock();
        if inner.waiting.calls.len() >= MOST {
            inner.flush(launcher)?;
        }
        inner.waiting.push(call);
        Ok(())
    }

    /// Hands the device all that waits. An error leaves nothing waiting.
    pub(super) fn flush(&self, launcher: &dyn Launcher) -> Result<()> {
        self.lock().flush(launcher)
    }

    /// Forgets everything: the device goes.
    pub(super) fn close(&self) {
        *self.lock() = Inner::default();
    }
}

impl Inner {
    fn flush(&mut self, launcher: &dyn Launcher) -> Result<()> {
        if self.waiting.calls.is_empty() {
            return Ok(());
        }
        self.counts.flushes += 1;
        let mut calls = mem::take(&mut self.waiting);
        let done = self.issue(launcher, &calls);
        calls.clear();
        self.waiting = calls;
        done
    }

    fn issue(&mut self, launcher: &dyn Launcher, calls: &Calls) -> Result<()> {
        if calls.calls.len() < FEW {
            return one_by_one(launcher, calls);
        }
        let Some(at) = self.kept.iter().position(|kept| kept.last.same_kernels(calls)) else {
            if self.kept.len() == KEPT {
                let oldest = self.kept.iter().enumerate().min_by_key(|(_, kept)| kept.used);
                let oldest = oldest.map_or(0, |(at, _)| at);
                self.kept.swap_remove(oldest);
            }
            self.kept.push(Kept { last: calls.clone(), graph: None, used: self.counts.flushes });
            return one_by_one(launcher, calls);
        };
        // a graph that could not be changed or run does not come back
        let mut kept = self.kept.swap_remove(at);
        self.counts.graph_node_updates += kept.change_to(launcher, calls)?;
        kept.used = self.counts.flushes;
        // SAFETY: as promised for each call when it was pushed.
        unsafe { kept.graph.as_ref().expect("made or changed above").run()? };
        self.counts.graphs += 1;
        self.kept.push(kept);
        Ok(())
    }
}

impl Kept {
    /// Makes the graph one of these calls; how many of them differ from those that it had.
    fn change_to(&mut self, launcher: &dyn Launcher, calls: &Calls) -> Result<u64> {
        let mut changed = 0;
        match &mut self.graph {
            // SAFETY: as promised for each call when it was pushed.
            empty @ None => *empty = Some(unsafe { launcher.graph(&Vec::from_iter(calls.iter()))? }),
            Some(_) if faults::on(Fault::GraphWithOldArguments) => (),
            Some(graph) => {
                let pairs = self.last.iter().zip(calls.iter()).enumerate();
                for (at, (_, new)) in pairs.filter(|(_, (old, new))| old != new) {
                    // SAFETY: as above.
                    unsafe { graph.set(at, new)? };
                    changed += 1;
                }
            }
        }
        self.last.clone_from(calls);
        Ok(changed)
    }
}

fn one_by_one(launcher: &dyn Launcher, calls: &Calls) -> Result<()> {
    // SAFETY: as promised for each call when it was pushed.
    calls.iter().try_for_each(|call| unsafe { launcher.launch(call) })
}
