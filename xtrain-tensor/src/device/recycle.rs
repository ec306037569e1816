//! Memory of tensors that are gone, taken again by those that come: after the first step of a loop
//! nothing is allocated, and no page is faulted in or zeroed twice.
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use half::bf16;

use crate::Element;

/// Elements below which a buffer is not worth keeping.
const LEAST: usize = 256;
/// Bytes that a device keeps for later, at most.
const MOST_BYTES: usize = 1 << 30;

/// The free buffers of a device.
#[derive(Debug, Default)]
pub(crate) struct Recycler {
    f32: Mutex<Shelf<f32>>,
    bf16: Mutex<Shelf<bf16>>,
}

/// Free buffers by length.
#[derive(Debug)]
pub(crate) struct Shelf<T> {
    by_len: HashMap<usize, Vec<Vec<T>>>,
    bytes: usize,
}

impl<T> Default for Shelf<T> {
    fn default() -> Shelf<T> {
        Shelf { by_len: HashMap::new(), bytes: 0 }
    }
}

/// An element type whose buffers a device may keep.
pub(crate) trait Recycled: Element {
    /// Its shelf; none for types that are not kept.
    #[doc(hidden)]
    fn shelf(recycler: &Recycler) -> Option<&Mutex<Shelf<Self>>>;
}

impl Recycled for f32 {
    fn shelf(recycler: &Recycler) -> Option<&Mutex<Shelf<f32>>> {
        Some(&recycler.f32)
    }
}
impl Recycled for bf16 {
    fn shelf(recycler: &Recycler) -> Option<&Mutex<Shelf<bf16>>> {
        Some(&recycler.bf16)
    }
}
impl Recycled for u32 {
    fn shelf(_: &Recycler) -> Option<&Mutex<Shelf<u32>>> {
        None
    }
}
impl Recycled for i32 {
    fn shelf(_: &Recycler) -> Option<&Mutex<Shelf<i32>>> {
        None
    }
}

impl Recycler {
    /// `len` elements of whatever values: the caller writes all of them.
    pub(crate) fn take<T: Recycled>(&self, len: usize) -> Vec<T> {
        let kept = T::shelf(self).and_then(|shelf| {
            let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = shelf.by_len.get_mut(&len)?.pop()?;
            shelf.bytes -= size_of_val(&kept[..]);
            Some(kept)
        });
        kept.unwrap_or_else(|| vec![T::default(); len])
    }

    fn give<T: Recycled>(&self, values: Vec<T>) {
        let bytes = size_of_val(&values[..]);
        let Some(shelf) = T::shelf(self).filter(|_| values.len() >= LEAST) else { return };
        let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
        if shelf.bytes + bytes > MOST_BYTES {
            *shelf = Shelf::default();
        }
        shelf.bytes += bytes;
        shelf.by_len.entry(values.len()).or_default().push(values);
    }
}

/// The values of a tensor; their memory goes back to its device.
#[derive(Debug)]
pub(crate) struct Buffer<T: Recycled> {
    values: Vec<T>,
    home: Arc<Recycler>,
}

impl<T: Recycled> Buffer<T> {
    pub(crate) fn new(values: Vec<T>, home: &Arc<Recycler>) -> Buffer<T> {
        Buffer { values, home: Arc::clone(home) }
    }
}

impl<T: Recycled> Clone for Buffer<T> {
    fn clone(&self) -> Buffer<T> {
        let mut values = self.home.take(self.values.len());
        values.copy_from_slice(&self.values);
        Buffer { values, home: Arc::clone(&self.home) }
    }
}

impl<T: Recycled> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.home.give(std::mem::take(&mut self.values));
    }
}

impl<T: Recycled> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T: Recycled> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_taken_again() {
        let home = Arc::new(Recycler::default());
        let first = Buffer::new(home.take::<f32>(1000), &home);
        let place = first.as_ptr();
        drop(first);
        let (second, third) = (home.take::<f32>(1000), home.take::<f32>(1000));
        assert_eq!((second.as_ptr(), third.len()), (place, 1000));
        assert_ne!(third.as_ptr(), place);
        assert_eq!(home.take::<bf16>(7).len(), 7);
    }
}
