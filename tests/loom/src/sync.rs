//! The types of `xtrain-tensor/src/sync.rs` from loom. A planted fault weakens the order of memory accesses.
use loom::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

pub(crate) use loom::sync::atomic::AtomicBool;
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
pub(crate) use loom::thread::{Builder, JoinHandle};
pub(crate) use std::sync::PoisonError;

/// A planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Fences do nothing.
    NoFences,
    /// Read-modify-writes and stores of integers are relaxed.
    Relaxed,
    /// Threads that sleep are not notified.
    NoNotification,
}

/// The fault that is switched on.
static FAULT: OnceLock<Fault> = OnceLock::new();

/// Switches `fault` on for the rest of the process.
pub(crate) fn plant(fault: Fault) {
    FAULT.set(fault).expect("one fault per process");
}

fn on(fault: Fault) -> bool {
    FAULT.get() == Some(&fault)
}

pub(crate) fn fence(order: Ordering) {
    if !on(Fault::NoFences) {
        loom::sync::atomic::fence(order);
    }
}

fn order(order: Ordering) -> Ordering {
    if on(Fault::Relaxed) { Ordering::Relaxed } else { order }
}

macro_rules! integer {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        #[allow(dead_code, reason = "each of the two uses a part")]
        impl $name {
            pub(crate) fn load(&self, at: Ordering) -> $value {
                self.0.load(at)
            }

            pub(crate) fn store(&self, value: $value, at: Ordering) {
                self.0.store(value, order(at));
            }

            pub(crate) fn swap(&self, value: $value, at: Ordering) -> $value {
                self.0.swap(value, order(at))
            }

            pub(crate) fn fetch_add(&self, value: $value, at: Ordering) -> $value {
                self.0.fetch_add(value, order(at))
            }

            pub(crate) fn fetch_sub(&self, value: $value, at: Ordering) -> $value {
                self.0.fetch_sub(value, order(at))
            }
        }
    };
}
integer!(AtomicU64, u64);
integer!(AtomicUsize, usize);

/// A condition variable that a fault disconnects.
#[derive(Debug, Default)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> std::sync::LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    pub(crate) fn notify_all(&self) {
        if !on(Fault::NoNotification) {
            self.0.notify_all();
        }
    }
}

/// Sleeps at once. After a yield loom would not return old values any more, which hides missing fences.
#[derive(Debug, Default)]
pub(crate) struct Spin;

impl Spin {
    pub(crate) fn again(&mut self) -> bool {
        false
    }
}

/// A value whose accesses loom checks: a write during another access is an error.
#[derive(Debug, Default)]
pub(crate) struct SharedCell<T>(UnsafeCell<T>);

impl<T> SharedCell<T> {
    pub(crate) unsafe fn set(&self, value: T) {
        self.0.with_mut(|cell| unsafe { *cell = value });
    }

    pub(crate) unsafe fn with<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        self.0.with(|cell| f(unsafe { &*cell }))
    }
}
