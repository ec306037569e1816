//! Converts panics of third-party parsers to errors.
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside [`guarded`]. A panic hook can skip printing such a panic.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

/// Runs `run` and catches panics.
///
/// # Errors
/// The message of a panic.
pub fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let before = GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(before);
    done.map_err(|panic| format!("the parser panicked: {}", text(panic.as_ref())))
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_the_guard_is_restored() {
        assert_eq!(guarded(|| (is_guarded(), 3)), Ok((true, 3)));
        let inner = || guarded(|| panic!("at byte {}", 7)).map(|(): ()| ()).unwrap_err();
        assert_eq!(guarded(|| (inner(), is_guarded())), Ok(("the parser panicked: at byte 7".into(), true)));
        assert!(!is_guarded());
    }
}
