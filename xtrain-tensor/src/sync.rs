//! The primitives of the thread pool. `tests/loom` replaces this module by one with the types of `loom`, which tries
//! the interleavings of the threads.
use std::cell::UnsafeCell;
use std::time::{Duration, Instant};

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use std::thread::{Builder, JoinHandle};

/// How long a thread spins without yielding its core.
const BUSY_SPIN: Duration = Duration::from_micros(100);

/// How long a thread spins and yields before it sleeps. Sleeping and waking costs 50 us or more on a virtual machine,
/// which is longer than the time between two jobs of a step.
pub(crate) const SPIN_LIMIT: Duration = Duration::from_millis(5);

/// The wait of a thread for another one, before it sleeps.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    since: Option<Instant>,
}

impl Spin {
    /// Spins or yields once. Returns false when the thread should sleep.
    pub(crate) fn again(&mut self) -> bool {
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if waited < BUSY_SPIN {
            (0..2).for_each(|_| std::hint::spin_loop());
        } else {
            std::thread::yield_now();
        }
        waited < SPIN_LIMIT
    }
}

/// A value whose accesses are ordered by its users.
#[derive(Debug, Default)]
pub(crate) struct SharedCell<T>(UnsafeCell<T>);

impl<T> SharedCell<T> {
    /// Replaces the value.
    ///
    /// # Safety
    /// No other thread accesses the cell at the same time.
    pub(crate) unsafe fn set(&self, value: T) {
        // SAFETY: by contract.
        unsafe { *self.0.get() = value };
    }

    /// Calls `f` with the value.
    ///
    /// # Safety
    /// No thread replaces the value during the call.
    pub(crate) unsafe fn with<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        // SAFETY: by contract.
        f(unsafe { &*self.0.get() })
    }
}
