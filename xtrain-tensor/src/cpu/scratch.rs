//! Thread-local scratch buffers that are reused. New memory would cost a page fault every 4 KiB.
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

/// Maximum number of free buffers per thread.
const MAX_FREE: usize = 128;

pub(crate) trait Scratch: Copy + 'static {
    const BLANK: Self;
    fn free() -> &'static LocalKey<RefCell<Vec<Vec<Self>>>>;
}

macro_rules! scratch {
    ($t:ty, $blank:expr) => {
        impl $crate::cpu::scratch::Scratch for $t {
            const BLANK: Self = $blank;
            fn free() -> &'static std::thread::LocalKey<std::cell::RefCell<Vec<Vec<Self>>>> {
                thread_local! {
                    static FREE: std::cell::RefCell<Vec<Vec<$t>>> = const { std::cell::RefCell::new(Vec::new()) };
                }
                &FREE
            }
        }
    };
}
pub(crate) use scratch;
scratch!(f32, 0.0);

/// A buffer that returns to its thread's free list when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer<T: Scratch>(Vec<T>);

impl<T: Scratch> Buffer<T> {
    /// Returns a buffer of `len` elements with unspecified values.
    pub(crate) fn new(len: usize) -> Buffer<T> {
        let mut buffer = Buffer::with_capacity(len);
        buffer.grow(len);
        buffer
    }

    /// Returns a buffer with capacity for `len` elements, possibly with fewer elements. Growing it just before the
    /// elements are written keeps the new memory in the CPU cache.
    pub(crate) fn with_capacity(len: usize) -> Buffer<T> {
        let best_fit = |free: &mut Vec<Vec<T>>| {
            let fits = |v: &Vec<T>| v.capacity() >= len;
            let best = (0..free.len()).filter(|&i| fits(&free[i])).min_by_key(|&i| free[i].capacity());
            best.map(|i| free.swap_remove(i))
        };
        let reused = T::free().with_borrow_mut(best_fit);
        let mut values = reused.unwrap_or_default();
        values.truncate(len);
        if values.capacity() < len {
            values.reserve_exact(len - values.len());
        }
        Buffer(values)
    }

    /// Drops the elements from `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Extends the buffer to at least `len` elements. New elements have unspecified values.
    pub(crate) fn grow(&mut self, len: usize) {
        if self.0.len() < len {
            self.0.resize(len, T::BLANK);
        }
    }
}

impl<T: Scratch> Drop for Buffer<T> {
    fn drop(&mut self) {
        let values = std::mem::take(&mut self.0);
        // an ending thread has no free list anymore; its memory is freed
        let _ = T::free().try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() == MAX_FREE {
                let smallest = (0..MAX_FREE).min_by_key(|&i| free[i].capacity()).expect("MAX_FREE > 0");
                free.swap_remove(smallest);
            }
            free.push(values);
        });
    }
}

impl<T: Scratch> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Scratch> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Byte(u8);
    scratch!(Byte, Byte(0));

    #[test]
    fn a_dropped_buffer_is_reused_and_one_in_use_is_not() {
        let mut a = Buffer::<Byte>::new(1000);
        a.fill(Byte(7));
        let b = Buffer::<Byte>::new(1000);
        let address = a.as_ptr();
        assert_ne!(address, b.as_ptr());
        drop(a);
        assert_eq!(Buffer::<Byte>::new(900).as_ptr(), address);
        assert_eq!(Buffer::<Byte>::new(1000).as_ptr(), address);
    }
}
