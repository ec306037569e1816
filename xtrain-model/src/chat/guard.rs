//! What a stranger's template may take: time, memory and stack.
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::ChatError;
use crate::third_party::guarded;

/// The longest that a template may take.
const LONGEST: Duration = Duration::from_secs(10);
/// A template that is done by then is not looked at: nearly all take less than a millisecond.
const USUAL: Duration = Duration::from_millis(200);
/// How much the process may grow after that.
const GROWTH: u64 = 1 << 30;
/// Enough for the recursion limits of the engine in an unoptimised build.
const STACK: usize = 16 << 20;

/// Runs `work` on a thread with a stack of its own and waits for it. What takes more than ten seconds, or
/// grows the process by more than a GiB, is given up: its thread goes on until the process ends, since no
/// thread can be ended from outside. Fuel ends most long templates before.
///
/// # Errors
/// Those of `work`; [`ChatError::Limit`]; [`ChatError::Render`] for a panic.
pub(super) fn bounded<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ChatError> + Send + 'static,
) -> Result<T, ChatError> {
    let (tx, rx) = channel();
    let begun = Instant::now();
    let run = move || _ = tx.send(guarded(work));
    let thread = thread::Builder::new().name("chat-template".into()).stack_size(STACK).spawn(run);
    let thread = thread.map_err(|e| ChatError::Render { got: format!("no thread for it: {e}") })?;
    let mut waited = rx.recv_timeout(USUAL);
    let before = resident();
    while let Err(RecvTimeoutError::Timeout) = waited {
        let limit = |what, want: String, got| Err(ChatError::Limit { what, want, got });
        if begun.elapsed() > LONGEST {
            return limit("time", format!("at most {} s", LONGEST.as_secs()), "more".into());
        }
        if resident().saturating_sub(before) > GROWTH {
            return limit("memory", "at most 1 GiB".into(), "more".into());
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
    const PAGE: u64 = 4096;
    let read = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    read.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_an_answer_an_answer() {
        assert_eq!(bounded(|| Ok(3)), Ok(3));
        let got = bounded::<()>(|| panic!("deep")).unwrap_err();
        assert_eq!(got, ChatError::Render { got: "its parser gave up: deep".into() });
    }

    #[test]
    fn what_never_ends_is_given_up() {
        let begun = Instant::now();
        let got = bounded::<()>(|| {
            loop {
                thread::sleep(Duration::from_millis(50))
            }
        })
        .unwrap_err();
        assert!(matches!(got, ChatError::Limit { what: "time", .. }), "{got}");
        assert!(begun.elapsed() < LONGEST + Duration::from_secs(2));
    }
}
