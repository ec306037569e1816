//! What a stranger's template may take: time, memory and stack.
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::ChatError;
use crate::third_party::guarded;

/// What a template may take.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// All of its time.
    time: Duration,
    /// A template that is done by then is not looked at: nearly all take less than a millisecond.
    unseen: Duration,
    /// How much the process may grow, in bytes.
    growth: u64,
    /// Its stack, in bytes. Only what is used of it takes memory.
    stack: usize,
}

const LIMITS: Limits = Limits {
    time: Duration::from_secs(5),
    unseen: Duration::from_millis(200),
    growth: 512 << 20,
    stack: 64 << 20,
};

thread_local! {
    /// Set when nobody waits for this thread's answer any more.
    static GIVEN_UP: RefCell<Arc<AtomicBool>> = RefCell::default();
}

/// Whether nobody waits for what this thread does: it has to end.
pub(super) fn given_up() -> bool {
    GIVEN_UP.with_borrow(|flag| flag.load(Ordering::Relaxed))
}

/// Runs `work` on a thread with so much stack and waits for it. What takes more than five seconds, or grows the
/// process by more than 512 MiB, is given up. Its thread ends when it next asks [`given_up`], as output, JSON and
/// methods do, or when its fuel is spent. Within one instruction of the engine it cannot be ended from outside: to
/// compare or join lists that hold each other sixty deep goes on until the process ends.
///
/// # Errors
/// Those of `work`; [`ChatError::Limit`]; [`ChatError::Render`] for a panic.
pub(super) fn bounded<T: Send + 'static>(
    stack: usize,
    work: impl FnOnce() -> Result<T, ChatError> + Send + 'static,
) -> Result<T, ChatError> {
    within(Limits { stack, ..LIMITS }, work)
}

fn within<T: Send + 'static>(
    limits: Limits,
    work: impl FnOnce() -> Result<T, ChatError> + Send + 'static,
) -> Result<T, ChatError> {
    let (tx, rx) = channel();
    let (begun, before) = (Instant::now(), resident());
    let flag = Arc::<AtomicBool>::default();
    let own = Arc::clone(&flag);
    let run = move || {
        GIVEN_UP.set(own);
        _ = tx.send(guarded(work));
    };
    let thread = thread::Builder::new().name("chat-template".into()).stack_size(limits.stack).spawn(run);
    let thread = thread.map_err(|e| ChatError::Render { got: format!("no thread for it: {e}") })?;
    let mut waited = rx.recv_timeout(limits.unseen);
    while let Err(RecvTimeoutError::Timeout) = waited {
        let limit = |what, want: String, got| {
            flag.store(true, Ordering::Relaxed);
            Err(ChatError::Limit { what, want, got })
        };
        if begun.elapsed() > limits.time {
            return limit("time", format!("at most {:?}", limits.time), "more".into());
        }
        if resident().saturating_sub(before) > limits.growth {
            return limit("memory", format!("at most {} MiB", limits.growth >> 20), "more".into());
        }
        waited = rx.recv_timeout(Duration::from_millis(5));
    }
    // the answer is there: the thread ends at once
    let _ = thread.join();
    match waited {
        Ok(done) => done.unwrap_or_else(|got| Err(ChatError::Render { got })),
        Err(_) => Err(ChatError::Render { got: "its thread gave no answer".into() }),
    }
}

/// The bytes of memory that the process has in use; 0 where the system does not say.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0u64) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_an_answer_an_answer() {
        assert_eq!(bounded(1 << 20, || Ok(3)), Ok(3));
        let got = bounded::<()>(1 << 20, || panic!("deep")).unwrap_err();
        assert_eq!(got, ChatError::Render { got: "its parser gave up: deep".into() });
    }

    #[test]
    fn what_never_ends_is_given_up_and_told_so() {
        let limits = Limits { time: Duration::from_millis(40), unseen: Duration::from_millis(10), ..LIMITS };
        let (tx, ended) = channel();
        let got = within::<()>(limits, move || {
            while !given_up() {
                thread::sleep(Duration::from_millis(20));
            }
            tx.send(()).unwrap();
            Ok(())
        });
        assert!(matches!(got, Err(ChatError::Limit { what: "time", .. })), "{got:?}");
        ended.recv_timeout(Duration::from_secs(100)).unwrap();
        assert!(!given_up(), "another thread is not meant");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_takes_all_memory_is_given_up() {
        let limits = Limits { growth: 64 << 20, unseen: Duration::from_millis(1), ..LIMITS };
        let (stop, stopped) = channel::<()>();
        let got = within::<()>(limits, move || {
            let mut taken = Vec::new();
            while let Err(std::sync::mpsc::TryRecvError::Empty) = stopped.try_recv() {
                if taken.len() < 200 {
                    taken.push(vec![1u8; 1 << 20]);
                }
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        drop(stop);
        assert!(matches!(got, Err(ChatError::Limit { what: "memory", .. })), "{got:?}");
    }
}
