//! Source location of a fault, taken from a backtrace of the faulty thread. Requires debug line information, which test
//! builds have.
use std::backtrace::Backtrace;
use std::cell::RefCell;

use super::ffi;

thread_local! {
    static FAULT: RefCell<Option<Backtrace>> = const { RefCell::new(None) };
}

/// Placeholder for the source location in the emulator's messages.
const PLACEHOLDER: &str = "<source>";

extern "C" fn note() {
    FAULT.set(Some(Backtrace::force_capture()));
}

/// Captures a backtrace of every fault from now on.
pub(super) fn capture_faults() {
    // SAFETY: a function that can be called from any thread at any time.
    unsafe { ffi::xtemu_on_fault(note) };
}

/// Returns the message with the placeholder replaced by the source location.
pub(super) fn with_location(text: &str) -> String {
    let fault = FAULT.take();
    if !text.contains(PLACEHOLDER) {
        return text.to_string();
    }
    let location = fault.and_then(|trace| innermost(&trace.to_string()));
    text.replace(PLACEHOLDER, &location.unwrap_or_else(|| "at an unknown line".into()))
}

/// `x.cu:12` of the first frame of the trace that is in a kernel file.
fn innermost(trace: &str) -> Option<String> {
    trace.lines().find_map(|line| {
        let (path, place) = line.trim().strip_prefix("at ")?.split_once(".cu:")?;
        let (name, line) = (path.rsplit('/').next()?, place.split(':').next()?);
        Some(format!("{name}.cu:{line}"))
    })
}

#[cfg(test)]
mod tests {
    use super::innermost;

    #[test]
    fn the_location_is_the_innermost_kernel_line() {
        let trace = "   0: note\n      at ./src/gpu/emulated/source.rs:17:5\n   3: load\n      at /x/kernels/contract.cuh:9:3\n   4: add_f32\n      at /x/kernels/add.cu:8:21\n   5: call\n      at /x/kernels/other.cu:1:2";
        assert_eq!(innermost(trace).as_deref(), Some("add.cu:8"));
        assert_eq!(innermost("   0: note"), None);
    }
}
