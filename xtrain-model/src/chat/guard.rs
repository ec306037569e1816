//! Limits on the time, memory and stack of an untrusted template.
use std::cell::RefCell;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use xtrain_tensor::faults;

use super::error::ChatError;
use crate::third_party::guarded;

#[derive(Debug, Clone, Copy)]
struct Limits {
    time: Duration,
    /// Time before monitoring starts. Nearly all templates take less than a millisecond.
    unmonitored: Duration,
    /// Maximum growth of the process's memory in bytes.
    growth: u64,
    /// Stack size in bytes. Only the used part takes memory.
    stack: usize,
}

const LIMITS: Limits = Limits {
    time: Duration::from_secs(5),
    unmonitored: Duration::from_millis(200),
    growth: 512 << 20,
    stack: 64 << 20,
};

thread_local! {
    /// Set when the work of this thread is cancelled.
    static CANCELLED: RefCell<Arc<AtomicBool>> = RefCell::default();
}

/// Whether the work of this thread is cancelled and must end.
pub(super) fn is_cancelled() -> bool {
    CANCELLED.with_borrow(|flag| flag.load(Ordering::Relaxed))
}

/// Runs `work` on a thread with `stack` bytes of stack and waits for it. Cancels work that takes more than five
/// seconds or grows the process by more than 512 MiB. A cancelled thread ends at its next call of [`is_cancelled`],
/// which output, JSON and methods make, or when its fuel is used up. Other instructions cannot be interrupted:
/// comparing or joining lists nested sixty deep runs until the process ends, and text that is doubled sixty times with
/// `~` takes all memory. A panic becomes [`ChatError::Render`].
pub(super) fn run_limited<T: Send + 'static>(
    stack: usize,
    work: impl FnOnce() -> Result<T, ChatError> + Send + 'static,
) -> Result<T, ChatError> {
    run_within(Limits { stack, ..LIMITS }, work)
}

fn run_within<T: Send + 'static>(
    limits: Limits,
    work: impl FnOnce() -> Result<T, ChatError> + Send + 'static,
) -> Result<T, ChatError> {
    let (tx, rx) = channel();
    let (start, before) = (Instant::now(), resident());
    let flag = Arc::<AtomicBool>::default();
    let thread_flag = Arc::clone(&flag);
    let fault = faults::current();
    let run = move || {
        CANCELLED.set(thread_flag);
        _ = tx.send(guarded(|| fault.enter(work)));
    };
    let thread = thread::Builder::new().name("chat-template".into()).stack_size(limits.stack).spawn(run);
    let thread = thread.map_err(|e| ChatError::Render { got: format!("cannot start a thread: {e}") })?;
    let mut result = rx.recv_timeout(limits.unmonitored);
    while let Err(RecvTimeoutError::Timeout) = result {
        let limit = |what, want: String, got| {
            flag.store(true, Ordering::Relaxed);
            Err(ChatError::Limit { what, want, got })
        };
        if start.elapsed() > limits.time {
            return limit("time", format!("at most {:?}", limits.time), "more".into());
        }
        if resident().saturating_sub(before) > limits.growth {
            return limit("memory", format!("at most {} MiB", limits.growth >> 20), "more".into());
        }
        result = rx.recv_timeout(Duration::from_millis(5));
    }
    // the thread has sent its result and ends immediately
    let _ = thread.join();
    match result {
        Ok(done) => done.unwrap_or_else(|got| Err(ChatError::Render { got })),
        Err(_) => Err(ChatError::Render { got: "the thread returned no result".into() }),
    }
}

/// The resident memory of the process in bytes. 0 if the system does not report it.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0u64) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_a_result_is_returned() {
        assert_eq!(run_limited(1 << 20, || Ok(3)), Ok(3));
        let got = run_limited::<()>(1 << 20, || panic!("deep")).unwrap_err();
        assert_eq!(got, ChatError::Render { got: "the parser panicked: deep".into() });
    }

    #[test]
    fn work_that_does_not_end_is_cancelled() {
        let (time, unmonitored) = (Duration::from_millis(40), Duration::from_millis(10));
        let limits = Limits { time, unmonitored, ..LIMITS };
        let (tx, ended) = channel();
        let got = run_within::<()>(limits, move || {
            while !is_cancelled() {
                thread::sleep(Duration::from_millis(20));
            }
            tx.send(()).unwrap();
            Ok(())
        });
        assert!(matches!(got, Err(ChatError::Limit { what: "time", .. })), "{got:?}");
        ended.recv_timeout(Duration::from_secs(100)).unwrap();
        assert!(!is_cancelled(), "only the thread of the work is cancelled");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn work_that_takes_too_much_memory_is_cancelled() {
        let limits = Limits { growth: 64 << 20, unmonitored: Duration::from_millis(1), ..LIMITS };
        let (stop, stopped) = channel::<()>();
        let got = run_within::<()>(limits, move || {
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
