//! Free lists for the memory of tensors, their values and their reference counts, and of packed weights. A dropped
//! buffer is reused by the next one of a similar length, so after the first steps no memory page is faulted in or
//! zeroed twice.
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use half::bf16;

use crate::Element;
use crate::error::Result;
use crate::faults::{self, Fault};
use crate::lock::lock;
use free_list::FreeList;
pub(super) use free_list::class_size;
pub(crate) use free_list::with_capacity;

mod free_list;

/// The free buffers of a CPU device.
#[derive(Default)]
pub(crate) struct Recycler {
    f32: Mutex<Free<f32>>,
    bf16: Mutex<Free<bf16>>,
    u32: Mutex<Free<u32>>,
    i32: Mutex<Free<i32>>,
    /// A [`FreeList`] for each element type of packed weights.
    packed: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl fmt::Debug for Recycler {
    /// Without the contents of free memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recycler").finish_non_exhaustive()
    }
}

/// The free memory of tensors of one element type.
#[derive(Default)]
pub(crate) struct Free<T> {
    buffers: FreeList<T>,
    /// Empty, each with one reference: where [`Values`] puts a buffer. There are at most as many as tensors were in use
    /// at the same time.
    handles: Vec<Arc<Vec<T>>>,
}

/// An element type that has free lists.
pub(crate) trait Recycled: Element {
    fn free(recycler: &Recycler) -> &Mutex<Free<Self>>;
}

macro_rules! recycled {
    ($($t:ident),*) => {$(
        impl Recycled for $t {
            fn free(recycler: &Recycler) -> &Mutex<Free<$t>> {
                &recycler.$t
            }
        }
    )*};
}
recycled!(f32, bf16, u32, i32);

impl Recycler {
    /// Returns a buffer of `len` elements with unspecified values. The caller must write all of them. Panics if there
    /// is no memory for it.
    pub(crate) fn acquire<T: Recycled>(&self, len: usize) -> Vec<T> {
        self.try_acquire(len).unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`acquire`](Self::acquire) for a length that a user chooses.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory): there is no memory for it.
    pub(crate) fn try_acquire<T: Recycled>(&self, len: usize) -> Result<Vec<T>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let mut values = lock(T::free(self)).buffers.take(len)?;
        values.resize(len, T::default());
        Ok(values)
    }

    /// Returns a buffer for a packed weight, of capacity `len` or more, with unspecified values.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory): there is no memory for it.
    pub(super) fn take_packed<T: Send + 'static>(&self, len: usize) -> Result<Vec<T>> {
        self.with_packed(|list| list.take(len))
    }

    /// Keeps the buffer of a packed weight for the next one.
    pub(super) fn keep_packed<T: Send + 'static>(&self, values: Vec<T>) {
        self.with_packed(|list| list.give_back(values));
    }

    /// Bytes of free buffers for packed weights of one element type.
    #[cfg(test)]
    pub(super) fn free_packed_bytes<T: Send + 'static>(&self) -> usize {
        self.with_packed::<T, _>(|list| list.free_bytes())
    }

    /// Runs `f` with the free list of an element type of packed weights.
    fn with_packed<T: Send + 'static, Out>(&self, f: impl FnOnce(&mut FreeList<T>) -> Out) -> Out {
        let mut lists = lock(&self.packed);
        let at = lists.iter().position(|list| list.is::<FreeList<T>>()).unwrap_or_else(|| {
            lists.push(Box::<FreeList<T>>::default());
            lists.len() - 1
        });
        f(lists[at].downcast_mut().expect("the list was found by its type"))
    }
}

/// The values of a tensor. Clones share them. When the last clone is dropped, the memory returns to the device's free
/// lists.
#[derive(Clone)]
pub(crate) struct Values<T: Recycled> {
    /// `None`: only while it is dropped.
    handle: Option<Arc<Vec<T>>>,
    recycler: Arc<Recycler>,
}

impl<T: Recycled> fmt::Debug for Values<T> {
    /// The first values, as `[1.0, 2.0, ..]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let mut list = f.debug_list();
        list.entries(self.iter().take(SHOWN));
        if self.len() > SHOWN { list.finish_non_exhaustive() } else { list.finish() }
    }
}

impl<T: Recycled> Values<T> {
    pub(crate) fn new(values: Vec<T>, recycler: &Arc<Recycler>) -> Values<T> {
        let mut handle = lock(T::free(recycler)).handles.pop().unwrap_or_default();
        *Arc::get_mut(&mut handle).expect("a free handle has one reference") = values;
        Values { handle: Some(handle), recycler: Arc::clone(recycler) }
    }

    /// Borrows the values mutably. Copies them first if they are shared.
    pub(crate) fn make_mut(&mut self) -> &mut [T] {
        let shared = self.handle.as_mut().is_some_and(|handle| Arc::get_mut(handle).is_none());
        if shared {
            let mut copy = self.recycler.acquire(self.len());
            copy.copy_from_slice(self);
            *self = Values::new(copy, &self.recycler);
        }
        let own = self.handle.as_mut().and_then(Arc::get_mut);
        own.expect("the values are not shared, or were copied")
    }
}

impl<T: Recycled> Drop for Values<T> {
    fn drop(&mut self) {
        let Some(mut handle) = self.handle.take() else { return };
        // two clones that are dropped at once may both see the other: then the last one frees the memory
        let Some(values) = Arc::get_mut(&mut handle).map(std::mem::take) else { return };
        let mut free = lock(T::free(&self.recycler));
        free.buffers.give_back(values);
        if !faults::on(Fault::TensorHandleFreed) {
            free.handles.push(handle);
        }
    }
}

impl<T: Recycled> Deref for Values<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.handle.as_deref().map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use crate::testing::page_faults;

    #[test]
    fn a_dropped_buffer_is_reused() {
        let recycler = Arc::new(Recycler::default());
        let first = Values::new(recycler.acquire::<f32>(1000), &recycler);
        let address = first.as_ptr();
        drop(first);
        let (second, third) = (recycler.acquire::<f32>(1000), recycler.acquire::<f32>(1000));
        assert_eq!((second.as_ptr(), third.len()), (address, 1000));
        assert_ne!(third.as_ptr(), address);
        assert_eq!(recycler.acquire::<bf16>(7).len(), 7);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_loop_faults_in_no_memory_after_its_first_step() {
        // above 32 MiB the C library returns freed blocks to the system
        const LEN: usize = 10 << 20;
        let recycler = Arc::new(Recycler::default());
        let step = || Values::new(recycler.acquire::<f32>(LEN), &recycler).make_mut().fill(1.0);
        let before = page_faults();
        step();
        let first = page_faults();
        (0..8).for_each(|_| step());
        // 40 MiB are 10,240 pages of 4 KiB or 20 pages of 2 MiB
        assert!(first - before >= 20, "the counter works: {} faults in the first step", first - before);
        assert!(page_faults() - first < 20, "{} faults in eight later steps", page_faults() - first);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_loop_with_varying_rows_faults_in_no_memory_after_a_while_and_keeps_little() {
        // tensors of 16 to 24 MiB that live at the same time, and half of that
        const WIDTHS: [usize; 4] = [1024, 1024, 1024, 512];
        let recycler = Arc::new(Recycler::default());
        let step = |rows: usize| {
            let tensors = WIDTHS.map(|width| Values::new(recycler.acquire::<f32>(rows * width), &recycler));
            tensors.into_iter().for_each(|mut values| values.make_mut().fill(1.0));
        };
        let rows = |step: usize| 4096 + step * 797 % 2048;
        (0..40).for_each(|at| step(rows(at)));
        let before = page_faults();
        (40..200).for_each(|at| step(rows(at)));
        // fewer than the 4,096 pages of the smallest tensor: pages at the end of buffers
        assert!(page_faults() - before < 2048, "{} faults in 160 steps", page_faults() - before);
        let largest = size_of::<f32>() * WIDTHS.iter().sum::<usize>() * 6144;
        let free = lock(&recycler.f32).buffers.free_bytes();
        assert!(free <= 2 * largest, "{free} bytes are free; the largest step has {largest}");
    }
}
