//! The memory that a loader takes for a damaged input.
use std::fmt::Display;

use xtrain_tensor::testing::CountedHeap;

#[global_allocator]
static HEAP: CountedHeap = CountedHeap;

/// The largest number of bytes that a loader may allocate in addition to the length of its input.
const MAX_ALLOCATION: usize = 64 << 20;

/// Runs `load`. `what` names the loader and the mutation of its input of `length` bytes. Panics if more than
/// [`MAX_ALLOCATION`] bytes are allocated at once. The test must run alone in its process.
#[track_caller]
pub(crate) fn with_little_memory<R>(what: impl Display, length: usize, load: impl FnOnce() -> R) -> R {
    let (result, peak) = CountedHeap::measure(load);
    let limit = MAX_ALLOCATION + length;
    assert!(peak <= limit, "{what}: {peak} bytes allocated for {length} bytes, at most {limit}");
    result
}
