//! A global allocator for training programs: large blocks use huge pages (2 MiB) and start at a cache line.
//!
//! A training step reads and writes tens of MiB of weights, moments and activations. On pages of 4 KiB they need more
//! address translations than the TLB holds, and in a block that is not aligned to a cache line, each vector load
//! spans two lines.
use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::ptr::null_mut;
use std::sync::Mutex;

use crate::lock::lock;

const PAGE_BYTES: usize = 2 << 20;
/// Bytes requested from the system at a time.
const SLAB_BYTES: usize = 16 * PAGE_BYTES;
/// Blocks of these sizes are cut from slabs. Smaller ones come from the system, larger ones get separate huge pages.
const MIN_SLAB_BLOCK: usize = 16 << 10;
const MAX_SLAB_BLOCK: usize = 8 << 20;
/// Four sizes per power of two.
const CLASSES: usize = 4 * (MAX_SLAB_BLOCK / MIN_SLAB_BLOCK).ilog2() as usize + 1;
const CACHE_LINE: usize = 64;
/// The exit code of a process without memory: EX_OSERR.
#[cfg(target_os = "linux")]
const OUT_OF_MEMORY: i32 = 71;
/// The message of a process without memory, around the number of bytes.
#[cfg(target_os = "linux")]
const ERROR: &[u8] = b"error: not enough memory: an allocation of ";
#[cfg(target_os = "linux")]
const HINT: &[u8] =
    b" bytes failed\nhint: reduce the batch, the lengths or the sizes of the model, or raise the \
                      limit (ulimit -v)\n";

/// An allocator for `#[global_allocator]`. Freed blocks of 16 KiB to 8 MiB are kept for the next allocation of the
/// same size class; others return to the system. If the system has no memory, the process prints an error and ends
/// with exit code 71 on Linux; elsewhere it aborts.
pub struct HugePages(Mutex<Slabs>);

impl fmt::Debug for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // the formatter may allocate, so the lock must not be held here
        f.debug_struct("HugePages").finish_non_exhaustive()
    }
}

/// The free blocks of each class, and the unused rest of the newest slab.
struct Slabs {
    free: [*mut Free; CLASSES],
    next: *mut u8,
    left: usize,
}

/// The header of a free block: the next free block of its class.
struct Free(*mut Free);

// SAFETY: the pointers are to memory that this allocator owns.
unsafe impl Send for Slabs {}

/// Where a block is allocated, depending on its layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SizeClass {
    System,
    /// The system, on separate huge pages.
    HugePages(Layout),
    /// A slab. The block occupies `bytes`.
    Slab {
        class: usize,
        bytes: usize,
    },
}

impl SizeClass {
    fn of(layout: Layout) -> SizeClass {
        let size = layout.size();
        match Layout::from_size_align(size, PAGE_BYTES) {
            Ok(pages) if size > MAX_SLAB_BLOCK && layout.align() <= PAGE_BYTES => {
                return SizeClass::HugePages(pages);
            }
            Ok(_) if size >= MIN_SLAB_BLOCK && layout.align() <= CACHE_LINE => {}
            _ => return SizeClass::System,
        }
        let power = (size - 1).ilog2();
        let quarter = 1usize << (power - 2);
        let quarters = size.div_ceil(quarter); // 5 to 8
        SizeClass::Slab {
            class: 4 * (power + 1 - MIN_SLAB_BLOCK.ilog2()) as usize + quarters - 8,
            bytes: quarters * quarter,
        }
    }
}

impl HugePages {
    /// Creates an allocator without any memory.
    pub const fn new() -> HugePages {
        HugePages(Mutex::new(Slabs { free: [null_mut(); CLASSES], next: null_mut(), left: 0 }))
    }
}

/// The memory that a block of `bytes` bytes of [`HugePages`] takes.
pub fn block_bytes(bytes: usize) -> usize {
    match Layout::from_size_align(bytes, align_of::<f32>()).map(SizeClass::of) {
        Ok(SizeClass::Slab { bytes, .. }) => bytes,
        Ok(SizeClass::HugePages(_)) => bytes.next_multiple_of(PAGE_BYTES),
        Ok(SizeClass::System) | Err(_) => bytes,
    }
}

impl Default for HugePages {
    fn default() -> HugePages {
        HugePages::new()
    }
}

impl Slabs {
    /// Returns a block of a class, or null if the system has no memory.
    fn acquire(&mut self, class: usize, bytes: usize) -> *mut u8 {
        let block = self.free[class];
        if !block.is_null() {
            // SAFETY: a block of the list; `release` wrote the next pointer into it.
            self.free[class] = unsafe { (*block).0 };
            return block.cast();
        }
        if self.left < bytes {
            // the rest of the previous slab is smaller than one block
            let Some(slab) = Layout::from_size_align(SLAB_BYTES, PAGE_BYTES).ok().map(alloc_huge_pages)
            else {
                return null_mut();
            };
            if slab.is_null() {
                return slab;
            }
            (self.next, self.left) = (slab, SLAB_BYTES);
        }
        let block = self.next;
        (self.next, self.left) = (block.wrapping_add(bytes), self.left - bytes);
        block
    }

    /// Keeps a block that [`Slabs::acquire`] returned.
    fn release(&mut self, class: usize, block: *mut Free) {
        // SAFETY: the block is large enough and aligned for a pointer, and no longer in use.
        unsafe { block.write(Free(self.free[class])) };
        self.free[class] = block;
    }
}

/// Allocates memory from the system and advises it to use huge pages.
fn alloc_huge_pages(layout: Layout) -> *mut u8 {
    // SAFETY: the size is not 0.
    let start = unsafe { System.alloc(layout) };
    #[cfg(target_os = "linux")]
    if !start.is_null() {
        // SAFETY: advice about whole pages of a block just allocated; the result does not matter.
        unsafe { libc::madvise(start.cast(), layout.size() / PAGE_BYTES * PAGE_BYTES, libc::MADV_HUGEPAGE) };
    }
    start
}

/// Ends the process if `block` is null: the system had no memory for `bytes`.
fn allocated(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() {
        exit_without_memory(bytes);
    }
    block
}

/// Prints an error and ends the process. Neither allocates, panics, takes a lock nor runs exit handlers: the caller is
/// the allocator.
#[cfg(target_os = "linux")]
fn exit_without_memory(bytes: usize) -> ! {
    let mut digits = [0; 20];
    for text in [ERROR, decimal(bytes, &mut digits), HINT] {
        // SAFETY: the bytes of a slice. If standard error cannot be written, only the exit code remains.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
    // SAFETY: ends the process; always allowed.
    unsafe { libc::_exit(OUT_OF_MEMORY) }
}

#[cfg(not(target_os = "linux"))]
fn exit_without_memory(_: usize) -> ! {
    std::process::abort()
}

/// The decimal digits of `number`, at the end of `digits`.
#[cfg(target_os = "linux")]
fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut first = digits.len();
    for (at, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (number % 10) as u8;
        (first, number) = (at, number / 10);
        if number == 0 {
            break;
        }
    }
    digits.get(first..).unwrap_or_default()
}

// SAFETY: a block has the requested size and alignment. It comes from the system, or it is at least as large as
// requested and starts at a multiple of a cache line (slabs start at page boundaries, classes are multiples of 4
// KiB). Between `acquire` and `release` it belongs to one user. Its size class is a function of its layout.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = match SizeClass::of(layout) {
            // SAFETY: the caller's promise.
            SizeClass::System => unsafe { System.alloc(layout) },
            SizeClass::HugePages(layout) => alloc_huge_pages(layout),
            SizeClass::Slab { class, bytes } => lock(&self.0).acquire(class, bytes),
        };
        allocated(block, layout.size())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match SizeClass::of(layout) {
            // SAFETY: the caller's promise; the layout is that of `alloc`.
            SizeClass::System => unsafe { System.dealloc(block, layout) },
            // SAFETY: as above.
            SizeClass::HugePages(layout) => unsafe { System.dealloc(block, layout) },
            SizeClass::Slab { class, .. } => lock(&self.0).release(class, block.cast()),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if SizeClass::of(layout) == SizeClass::System {
            // SAFETY: the caller's promise.
            return allocated(unsafe { System.alloc_zeroed(layout) }, layout.size());
        }
        // SAFETY: the caller's promise; the block has the requested size.
        unsafe {
            let block = self.alloc(layout);
            block.write_bytes(0, layout.size());
            block
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise: `size` fits a layout of this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (SizeClass::of(layout), SizeClass::of(wanted)) {
            (SizeClass::System, SizeClass::System) => {
                // SAFETY: the caller's promise.
                allocated(unsafe { System.realloc(block, layout, size) }, size)
            }
            (SizeClass::Slab { class, .. }, SizeClass::Slab { class: same, .. }) if class == same => block,
            // SAFETY: the caller's promise; both blocks are at least as large as the copy.
            _ => unsafe {
                let new = self.alloc(wanted);
                block.copy_to_nonoverlapping(new, size.min(layout.size()));
                self.dealloc(block, layout);
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
    fn a_block_takes_its_class_or_whole_pages() {
        let (page, kib) = (PAGE_BYTES, 1 << 10);
        let taken = [100, 576 * kib, 640 * kib, 5 * page, 5 * page + 1].map(block_bytes);
        assert_eq!(taken, [100, 640 * kib, 640 * kib, 5 * page, 6 * page]);
    }

    #[test]
    fn every_size_fits_its_class_with_at_most_a_quarter_of_padding() {
        let mut bytes_of = [0; CLASSES];
        for size in (MIN_SLAB_BLOCK..=MAX_SLAB_BLOCK).step_by(509).chain([MIN_SLAB_BLOCK + 1, MAX_SLAB_BLOCK])
        {
            let SizeClass::Slab { class, bytes } = SizeClass::of(layout(size, 4)) else { panic!("{size}") };
            assert!(
                size <= bytes && 4 * bytes <= 5 * size.next_multiple_of(4096) && bytes.is_multiple_of(4096)
            );
            assert!(bytes_of[class] == 0 || bytes_of[class] == bytes, "{size} in class {class}");
            bytes_of[class] = bytes;
        }
        assert!(
            bytes_of.is_sorted() && bytes_of[0] == MIN_SLAB_BLOCK && bytes_of[CLASSES - 1] == MAX_SLAB_BLOCK
        );
        assert_eq!(SizeClass::of(layout(MIN_SLAB_BLOCK - 1, 4)), SizeClass::System);
        assert_eq!(SizeClass::of(layout(MIN_SLAB_BLOCK, 128)), SizeClass::System);
        assert!(matches!(SizeClass::of(layout(MAX_SLAB_BLOCK + 1, 64)), SizeClass::HugePages(_)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_number_is_written_without_an_allocation() {
        for number in [0, 9, 10, 67_108_864, usize::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }

    #[test]
    fn blocks_do_not_overlap_are_reused_and_keep_their_bytes_on_realloc() {
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
            assert!(clean == dirty && other != dirty, "a free block is handed out once");
            assert!(std::slice::from_raw_parts(clean, 49_999).iter().all(|&byte| byte == 0));
            pages.dealloc(clean, layout(49_999, 4));
            pages.dealloc(other, layout(50_000, 4));
        }
    }

    #[test]
    fn a_block_that_shrinks_leaves_its_new_neighbor_unchanged() {
        let pages = HugePages::new();
        let (large, small) = (layout(200_000, 64), layout(20_000, 64));
        // SAFETY: blocks are used inside their sizes, with their layouts.
        unsafe {
            let [block, free, neighbor] = [large, small, small].map(|layout| pages.alloc(layout));
            assert_eq!(neighbor.addr() - free.addr(), block_bytes(small.size()), "neighbors in a slab");
            block.write_bytes(1, large.size());
            neighbor.write_bytes(2, small.size());
            pages.dealloc(free, small);
            let shrunk = pages.realloc(block, large, small.size());
            assert_eq!(shrunk, free, "a free block of its class");
            for (block, want) in [(shrunk, 1), (neighbor, 2)] {
                let bytes = std::slice::from_raw_parts(block, small.size());
                assert!(bytes.iter().all(|&byte| byte == want), "bytes other than {want}");
                pages.dealloc(block, small);
            }
        }
    }
}
