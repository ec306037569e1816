//! Thread-local working memory that is reused between calls.
use std::cell::RefCell;

/// A cache line. The alignment keeps registers from spanning two cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

const LINE: usize = 16;

thread_local! {
    static LINES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with buffers of at least these lengths, rounded up to multiples of 16. Their contents are unspecified.
pub(super) fn with<const N: usize, T>(lens: [usize; N], f: impl FnOnce([&mut [f32]; N]) -> T) -> T {
    LINES.with_borrow_mut(|lines| {
        let total: usize = lens.iter().map(|n| n.div_ceil(LINE)).sum();
        if lines.len() < total {
            lines.resize(total, Line([0.0; LINE]));
        }
        // SAFETY: a Line is LINE values of f32 without padding, and `lines` is borrowed as long as the slice.
        let values =
            unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<f32>(), lines.len() * LINE) };
        let mut rest = values;
        f(lens.map(|n| rest.split_off_mut(..n.next_multiple_of(LINE)).expect("the total was reserved")))
    })
}
