//! Free lists for the memory of tensors. A dropped tensor's buffer is reused by the next tensor of a similar length,
//! so after the first steps a training loop allocates nothing, and no memory page is faulted in or zeroed twice.
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use half::bf16;

use crate::Element;
use crate::lock::lock;
use free_list::FreeList;

mod free_list;

/// Buffers with fewer elements are not kept.
const MIN_ELEMENTS: usize = 256;

/// The free buffers of a CPU device.
#[derive(Debug, Default)]
pub(crate) struct Recycler {
    f32: Mutex<FreeList<f32>>,
    bf16: Mutex<FreeList<bf16>>,
}

/// An element type whose buffers a device may keep.
pub(crate) trait Recycled: Element {
    /// The free list of this type. `None`: buffers of this type are not kept.
    fn free_list(_recycler: &Recycler) -> Option<&Mutex<FreeList<Self>>> {
        None
    }
}

impl Recycled for f32 {
    fn free_list(recycler: &Recycler) -> Option<&Mutex<FreeList<f32>>> {
        Some(&recycler.f32)
    }
}
impl Recycled for bf16 {
    fn free_list(recycler: &Recycler) -> Option<&Mutex<FreeList<bf16>>> {
        Some(&recycler.bf16)
    }
}
impl Recycled for u32 {}
impl Recycled for i32 {}

impl Recycler {
    /// Returns a buffer of `len` elements with unspecified values. The caller must write all of them.
    pub(crate) fn acquire<T: Recycled>(&self, len: usize) -> Vec<T> {
        let Some(free_list) = T::free_list(self).filter(|_| len >= MIN_ELEMENTS) else {
            return vec![T::default(); len];
        };
        let mut values = lock(free_list).take(len);
        values.resize(len, T::default());
        values
    }

    fn release<T: Recycled>(&self, values: Vec<T>) {
        if let Some(free_list) = T::free_list(self).filter(|_| values.capacity() >= MIN_ELEMENTS) {
            lock(free_list).give_back(values);
        }
    }
}

/// The values of a tensor. When it is dropped, its memory returns to the device's free list.
#[derive(Debug)]
pub(crate) struct Buffer<T: Recycled> {
    values: Vec<T>,
    recycler: Arc<Recycler>,
}

impl<T: Recycled> Buffer<T> {
    pub(crate) fn new(values: Vec<T>, recycler: &Arc<Recycler>) -> Buffer<T> {
        Buffer { values, recycler: Arc::clone(recycler) }
    }
}

impl<T: Recycled> Clone for Buffer<T> {
    fn clone(&self) -> Buffer<T> {
        let mut values = self.recycler.acquire(self.values.len());
        values.copy_from_slice(&self.values);
        Buffer { values, recycler: Arc::clone(&self.recycler) }
    }
}

impl<T: Recycled> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.recycler.release(std::mem::take(&mut self.values));
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
    fn a_dropped_buffer_is_reused() {
        let recycler = Arc::new(Recycler::default());
        let first = Buffer::new(recycler.acquire::<f32>(1000), &recycler);
        let address = first.as_ptr();
        drop(first);
        let (second, third) = (recycler.acquire::<f32>(1000), recycler.acquire::<f32>(1000));
        assert_eq!((second.as_ptr(), third.len()), (address, 1000));
        assert_ne!(third.as_ptr(), address);
        assert_eq!(recycler.acquire::<bf16>(7).len(), 7);
    }

    /// Minor page faults of this thread so far.
    #[cfg(target_os = "linux")]
    fn page_faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
        // field 10; the name in parentheses is field 2
        let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
        fields.split(' ').nth(7).and_then(|n| n.parse().ok()).expect("a number")
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_loop_faults_in_no_memory_after_its_first_step() {
        // above 32 MiB the C library returns freed blocks to the system
        const LEN: usize = 10 << 20;
        let recycler = Arc::new(Recycler::default());
        let step = || Buffer::new(recycler.acquire::<f32>(LEN), &recycler).fill(1.0);
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
            let tensors = WIDTHS.map(|width| Buffer::new(recycler.acquire::<f32>(rows * width), &recycler));
            tensors.into_iter().for_each(|mut values| values.fill(1.0));
        };
        let rows = |step: usize| 4096 + step * 797 % 2048;
        (0..40).for_each(|at| step(rows(at)));
        let before = page_faults();
        (40..200).for_each(|at| step(rows(at)));
        // fewer than the 4,096 pages of the smallest tensor: pages at the end of buffers
        assert!(page_faults() - before < 2048, "{} faults in 160 steps", page_faults() - before);
        let largest = size_of::<f32>() * WIDTHS.iter().sum::<usize>() * 6144;
        let free = lock(&recycler.f32).free_bytes();
        assert!(free <= 2 * largest, "{free} bytes are free; the largest step has {largest}");
    }
}
