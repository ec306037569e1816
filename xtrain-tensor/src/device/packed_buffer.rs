//! The memory of a packed weight.
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::recycle::Recycler;
use crate::error::Result;
use crate::faults::{self, Fault};

/// A buffer that returns to the free lists of its device when it is dropped, on any thread. The thread that packs a
/// weight is not the one that drops it, so lists of threads would not do.
pub(crate) struct PackedBuffer<T: Copy + Send + 'static> {
    values: Vec<T>,
    recycler: Arc<Recycler>,
}

impl<T: Copy + Send + 'static> fmt::Debug for PackedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedBuffer").field("len", &self.values.len()).finish_non_exhaustive()
    }
}

impl<T: Copy + Send + 'static> PackedBuffer<T> {
    /// Returns a buffer with capacity for `len` elements, possibly with fewer elements. Growing it just before the
    /// elements are written keeps the new memory in the CPU cache.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory): there is no memory for it.
    pub(crate) fn with_capacity(recycler: &Arc<Recycler>, len: usize) -> Result<PackedBuffer<T>> {
        let mut values = match len {
            0 => Vec::new(),
            _ => recycler.take_packed(len)?,
        };
        values.truncate(len);
        Ok(PackedBuffer { values, recycler: Arc::clone(recycler) })
    }

    /// Extends the buffer to at least `len` elements with `blank`. Elements that it had before are unspecified.
    pub(crate) fn grow(&mut self, len: usize, blank: T) {
        if self.values.len() < len {
            self.values.resize(len, blank);
        }
    }
}

impl<T: Copy + Send + 'static> Drop for PackedBuffer<T> {
    fn drop(&mut self) {
        let values = std::mem::take(&mut self.values);
        if !faults::on(Fault::PackedWeightFreed) {
            self.recycler.keep_packed(values);
        }
    }
}

impl<T: Copy + Send + 'static> Deref for PackedBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T: Copy + Send + 'static> DerefMut for PackedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that are free after a buffer was made by one thread and dropped by another.
    fn free_bytes_after_a_step() -> usize {
        let recycler = Arc::<Recycler>::default();
        for _ in 0..2 {
            let pack = || {
                let mut buffer = PackedBuffer::<u64>::with_capacity(&recycler, 1000).unwrap();
                buffer.grow(1000, 7);
                buffer
            };
            let packed = std::thread::scope(|s| s.spawn(pack).join().unwrap());
            assert_eq!(packed[..], [7; 1000]);
        }
        recycler.free_packed_bytes::<u64>()
    }

    #[test]
    fn a_buffer_that_another_thread_drops_is_kept_once() {
        assert_eq!(free_bytes_after_a_step(), 8 * 1024);
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_buffer_that_is_not_kept_is_detected() {
        assert_eq!(faults::with(Fault::PackedWeightFreed, free_bytes_after_a_step), 0);
    }
}
