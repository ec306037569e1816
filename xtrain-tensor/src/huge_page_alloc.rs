//! An allocator for programs that train: large blocks lie on pages of 2 MiB and begin at cache lines.
//!
//! A step walks tens of MiB of weights, moments and activations. On pages of 4 KiB those are more addresses
//! than a processor remembers, and in a block that begins anywhere each register straddles two cache lines.
use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

/// Bytes of a page.
const PAGE: usize = 2 << 20;
/// Bytes that are asked of the system at a time.
const SLAB: usize = 16 * PAGE;
/// Blocks of these sizes are cut from slabs. Smaller ones are the system's business, larger ones have pages
/// of their own.
const LEAST: usize = 16 << 10;
const MOST: usize = 8 << 20;
/// Four sizes from one power of two to the next.
const CLASSES: usize = 4 * (MOST / LEAST).ilog2() as usize + 1;
/// Bytes of a cache line.
const LINE: usize = 64;

/// What a program gives to `#[global_allocator]`. Blocks of 16 KiB to 8 MiB are kept, when they are freed,
/// for the next of about that size; others go back to the system.
pub struct HugePages(Mutex<Slabs>);

impl fmt::Debug for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // what it writes may ask for memory: the lock stays free
        f.debug_struct("HugePages").finish_non_exhaustive()
    }
}

/// The free blocks of each class, and what is left of the newest slab.
struct Slabs {
    free: [*mut Free; CLASSES],
    next: *mut u8,
    left: usize,
}

/// What stands in a free block: the next one of its class.
struct Free(*mut Free);

// SAFETY: the pointers are to memory that nobody else uses.
unsafe impl Send for Slabs {}

/// Where a block comes from, and goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home {
    System,
    /// The system, on pages of its own.
    Pages(Layout),
    /// A slab, as `bytes`.
    Slab {
        class: usize,
        bytes: usize,
    },
}

impl Home {
    fn of(layout: Layout) -> Home {
        let size = layout.size();
        match Layout::from_size_align(size, PAGE) {
            Ok(pages) if size > MOST && layout.align() <= PAGE => return Home::Pages(pages),
            Ok(_) if size >= LEAST && layout.align() <= LINE => {}
            _ => return Home::System,
        }
        let power = (size - 1).ilog2();
        let quarter = 1usize << (power - 2);
        let quarters = size.div_ceil(quarter); // 5 to 8
        Home::Slab {
            class: 4 * (power + 1 - LEAST.ilog2()) as usize + quarters - 8,
            bytes: quarters * quarter,
        }
    }
}

impl HugePages {
    /// An allocator that holds nothing yet.
    pub const fn new() -> HugePages {
        HugePages(Mutex::new(Slabs { free: [null_mut(); CLASSES], next: null_mut(), left: 0 }))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Slabs) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Default for HugePages {
    fn default() -> HugePages {
        HugePages::new()
    }
}

impl Slabs {
    /// A block of a class, or null.
    fn take(&mut self, class: usize, bytes: usize) -> *mut u8 {
        let kept = self.free[class];
        if !kept.is_null() {
            // SAFETY: a block of the list, in which `give` has written the next one.
            self.free[class] = unsafe { (*kept).0 };
            return kept.cast();
        }
        if self.left < bytes {
            // what is left of the slab before is less than one block
            let Some(slab) = Layout::from_size_align(SLAB, PAGE).ok().map(on_huge_pages) else {
                return null_mut();
            };
            if slab.is_null() {
                return slab;
            }
            (self.next, self.left) = (slab, SLAB);
        }
        let block = self.next;
        (self.next, self.left) = (block.wrapping_add(bytes), self.left - bytes);
        block
    }

    /// Keeps a block that [`Slabs::take`] gave.
    fn give(&mut self, class: usize, block: *mut Free) {
        // SAFETY: the block has room for a pointer, its alignment, and no user any more.
        unsafe { block.write(Free(self.free[class])) };
        self.free[class] = block;
    }
}

/// Memory of the system on pages of 2 MiB, where the system has them.
fn on_huge_pages(layout: Layout) -> *mut u8 {
    // SAFETY: the size is not 0.
    let start = unsafe { System.alloc(layout) };
    #[cfg(target_os = "linux")]
    if !start.is_null() {
        // SAFETY: advice about whole pages of a block just allocated; what it returns does not matter.
        unsafe { libc::madvise(start.cast(), layout.size() / PAGE * PAGE, libc::MADV_HUGEPAGE) };
    }
    start
}

// SAFETY: a block has the size and the alignment that are asked for: at least so many bytes from a
// multiple of a line on (slabs begin at pages, classes are multiples of 4 KiB), or the system's. It is in
// one user's hands from `take` to `give`, and its home is a function of its layout.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match Home::of(layout) {
            // SAFETY: the caller's promise.
            Home::System => unsafe { System.alloc(layout) },
            Home::Pages(layout) => on_huge_pages(layout),
            Home::Slab { class, bytes } => self.with(|slabs| slabs.take(class, bytes)),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match Home::of(layout) {
            // SAFETY: the caller's promise; the layout is that of `alloc`.
            Home::System => unsafe { System.dealloc(block, layout) },
            // SAFETY: as above.
            Home::Pages(layout) => unsafe { System.dealloc(block, layout) },
            Home::Slab { class, .. } => self.with(|slabs| slabs.give(class, block.cast())),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if Home::of(layout) == Home::System {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's promise; the block has the size that was asked for.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise: `size` fits a layout of this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (Home::of(layout), Home::of(wanted)) {
            // SAFETY: the caller's promise.
            (Home::System, Home::System) => unsafe { System.realloc(block, layout, size) },
            (Home::Slab { class, .. }, Home::Slab { class: same, .. }) if class == same => block,
            // SAFETY: the caller's promise; both blocks have as many bytes as are copied.
            _ => unsafe {
                let new = self.alloc(wanted);
                if !new.is_null() {
                    block.copy_to_nonoverlapping(new, size.min(layout.size()));
                    self.dealloc(block, layout);
                }
                new
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn every_size_fits_its_class_and_wastes_at_most_a_quarter() {
        let mut bytes_of = [0; CLASSES];
        for size in (LEAST..=MOST).step_by(509).chain([LEAST + 1, MOST]) {
            let Home::Slab { class, bytes } = Home::of(layout(size, 4)) else { panic!("{size}") };
            assert!(
                size <= bytes && 4 * bytes <= 5 * size.next_multiple_of(4096) && bytes.is_multiple_of(4096)
            );
            assert!(bytes_of[class] == 0 || bytes_of[class] == bytes, "{size} in class {class}");
            bytes_of[class] = bytes;
        }
        assert!(bytes_of.is_sorted() && bytes_of[0] == LEAST && bytes_of[CLASSES - 1] == MOST);
        assert_eq!(Home::of(layout(LEAST - 1, 4)), Home::System);
        assert_eq!(Home::of(layout(LEAST, 128)), Home::System);
        assert!(matches!(Home::of(layout(MOST + 1, 64)), Home::Pages(_)));
    }

    #[test]
    fn blocks_do_not_meet_are_taken_again_and_keep_their_bytes_when_they_move() {
        let pages = HugePages::new();
        let sizes: Vec<usize> = (0..60).map(|i| 100 << (i % 18)).collect();
        // SAFETY: blocks are used inside their sizes and freed once, with their layouts.
        unsafe {
            let blocks: Vec<*mut u8> = sizes.iter().map(|&n| pages.alloc(layout(n, 64))).collect();
            for (i, (&block, &n)) in blocks.iter().zip(&sizes).enumerate() {
                assert!(!block.is_null() && block.addr().is_multiple_of(64));
                block.write_bytes(i as u8, n);
            }
            for (i, (&block, &n)) in blocks.iter().zip(&sizes).enumerate() {
                let moved = pages.realloc(block, layout(n, 64), 3 * n);
                let kept = std::slice::from_raw_parts(moved, n);
                assert!(kept.iter().all(|&byte| byte == i as u8), "block {i} of {n} bytes");
                pages.dealloc(moved, layout(3 * n, 64));
            }
            let dirty = pages.alloc(layout(50_000, 4));
            dirty.write_bytes(7, 50_000);
            pages.dealloc(dirty, layout(50_000, 4));
            let clean = pages.alloc_zeroed(layout(49_999, 4));
            let other = pages.alloc(layout(50_000, 4));
            assert!(clean == dirty && other != dirty, "a free block is given once");
            assert!(std::slice::from_raw_parts(clean, 49_999).iter().all(|&byte| byte == 0));
            pages.dealloc(clean, layout(49_999, 4));
            pages.dealloc(other, layout(50_000, 4));
        }
    }
}
