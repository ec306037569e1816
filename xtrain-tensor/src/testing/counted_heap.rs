//! An allocator for tests that counts the bytes and the allocations of its process.
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

/// Allocated bytes.
static CURRENT: AtomicIsize = AtomicIsize::new(0);
/// The largest value of [`CURRENT`] since [`CountedHeap::measure`] began.
static PEAK: AtomicIsize = AtomicIsize::new(0);
/// Allocations so far. A reallocation is one.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// The allocator of the system, for `#[global_allocator]` of a test binary.
#[derive(Debug)]
pub struct CountedHeap;

impl CountedHeap {
    /// Runs `work`. Also returns the largest number of bytes that the process had allocated meanwhile, minus those
    /// before. Counts all threads: for tests that run [`alone`](super::alone).
    ///
    /// # Panics
    /// If this is not the allocator of the process.
    pub fn measure<R>(work: impl FnOnce() -> R) -> (R, usize) {
        let before = CURRENT.load(Relaxed);
        CountedHeap::check();
        PEAK.store(before, Relaxed);
        let result = work();
        (result, usize::try_from(PEAK.load(Relaxed) - before).unwrap_or(0))
    }

    /// Runs `work`. Also returns the number of allocations of the process meanwhile, those of all threads.
    ///
    /// # Panics
    /// If this is not the allocator of the process.
    pub fn allocations<R>(work: impl FnOnce() -> R) -> (R, usize) {
        CountedHeap::check();
        let before = ALLOCATIONS.load(Relaxed);
        let result = work();
        (result, ALLOCATIONS.load(Relaxed) - before)
    }

    fn check() {
        let before = CURRENT.load(Relaxed);
        let probe = black_box(Box::new([0u8; 64]));
        assert!(CURRENT.load(Relaxed) >= before + 64, "CountedHeap is not the global allocator");
        drop(probe);
    }
}

fn add(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Relaxed);
    let now = CURRENT.fetch_add(bytes as isize, Relaxed) + bytes as isize;
    if now > PEAK.load(Relaxed) {
        PEAK.fetch_max(now, Relaxed);
    }
}

fn subtract(bytes: usize) {
    CURRENT.fetch_sub(bytes as isize, Relaxed);
}

// SAFETY: every call goes to the allocator of the system with unchanged arguments.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as for this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as for this function.
        unsafe { System.alloc_zeroed(layout) }
    }

    /// Counts the old and the new block until the old one is freed.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size);
        // SAFETY: as for this function.
        let new = unsafe { System.realloc(block, layout, size) };
        subtract(if new.is_null() { size } else { layout.size() });
        new
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        subtract(layout.size());
        // SAFETY: as for this function.
        unsafe { System.dealloc(block, layout) }
    }
}
