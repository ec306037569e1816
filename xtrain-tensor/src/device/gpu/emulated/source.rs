//! Where in a kernel's source a fault is: the faulty thread's own stack says it, as long as the program
//! has the lines of its code with it, as tests have.
use std::backtrace::Backtrace;
use std::cell::RefCell;

use super::ffi;

thread_local! {
    static FAULT: RefCell<Option<Backtrace>> = const { RefCell::new(None) };
}

/// What stands in the emulator's message for the place.
const PLACE: &str = "<source>";

extern "C" fn note() {
    FAULT.set(Some(Backtrace::force_capture()));
}

/// From now on faults are noted.
pub(super) fn listen() {
    // SAFETY: a function that can be called from any thread at any time.
    unsafe { ffi::xtemu_on_fault(note) };
}

/// The message with the place in it.
pub(super) fn named(text: &str) -> String {
    let fault = FAULT.take();
    if !text.contains(PLACE) {
        return text.to_string();
    }
    let place = fault.and_then(|trace| innermost(&trace.to_string()));
    text.replace(PLACE, &place.unwrap_or_else(|| "at an unknown line".into()))
}

/// `x.cu:12` of the first frame of a trace that lies in a kernel's file.
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
    fn the_place_is_the_innermost_line_of_a_kernel() {
        let trace = "   0: note\n      at ./src/gpu/emulated/source.rs:17:5\n   3: load\n      at /x/kernels/contract.cuh:9:3\n   4: add_f32\n      at /x/kernels/add.cu:8:21\n   5: call\n      at /x/kernels/other.cu:1:2";
        assert_eq!(innermost(trace).as_deref(), Some("add.cu:8"));
        assert_eq!(innermost("   0: note"), None);
    }
}
