//! The system allocator with counters.
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// The system allocator. Counts the allocations of all threads between [`Counting::start`] and [`Counting::stop`].
pub(crate) struct Counting {
    on: AtomicBool,
    blocks: AtomicUsize,
    bytes: AtomicUsize,
    largest: AtomicUsize,
}

/// Allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) blocks: usize,
    pub(crate) bytes: usize,
    /// Size of the largest block.
    pub(crate) largest: usize,
}

impl Counting {
    pub(crate) const fn new() -> Counting {
        let (on, blocks) = (AtomicBool::new(false), AtomicUsize::new(0));
        Counting { on, blocks, bytes: AtomicUsize::new(0), largest: AtomicUsize::new(0) }
    }

    pub(crate) fn start(&self) {
        [&self.blocks, &self.bytes, &self.largest].into_iter().for_each(|n| n.store(0, SeqCst));
        self.on.store(true, SeqCst);
    }

    pub(crate) fn stop(&self) -> Counted {
        self.on.store(false, SeqCst);
        let [blocks, bytes, largest] = [&self.blocks, &self.bytes, &self.largest].map(|n| n.load(SeqCst));
        Counted { blocks, bytes, largest }
    }

    fn count(&self, size: usize) {
        if self.on.load(SeqCst) {
            self.blocks.fetch_add(1, SeqCst);
            self.bytes.fetch_add(size, SeqCst);
            self.largest.fetch_max(size, SeqCst);
        }
    }
}

// SAFETY: every call is passed to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: the contract of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: the contract of the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.count(size);
        // SAFETY: the contract of the caller.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the contract of the caller.
        unsafe { System.dealloc(block, layout) }
    }
}
