//! The free buffers of one element type, by size class.
use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{Error, Result};

/// A list holds at most this much memory more than was in use at the same time, or a quarter more.
const SLACK_BYTES: usize = 1 << 30;
/// Classes from this number of elements on are those of activations, whose lengths vary with the rows of a pass.
const LARGE: usize = 1 << 14;

/// A request of a class takes a free buffer of at most this multiple of it. A small tensor would keep a large buffer
/// from the activations.
fn max_fit(size: usize) -> usize {
    if size < LARGE { 2 } else { 16 }
}

/// The smallest size class of at least `len` elements. There are eight classes per power of two, so at most an eighth
/// of a new buffer is unused.
pub(in crate::device) fn class_size(len: usize) -> usize {
    let step = 1 << (len.max(16) - 1).ilog2().saturating_sub(3);
    len.checked_next_multiple_of(step).unwrap_or(usize::MAX)
}

/// An empty buffer with room for `len` elements.
///
/// # Errors
/// [`Error::Memory`]: there is no memory for it.
pub(crate) fn with_capacity<T>(len: usize) -> Result<Vec<T>> {
    let mut buffer = Vec::new();
    let bytes = len.saturating_mul(size_of::<T>());
    let out_of_memory = |_| Error::Memory { bytes, on_gpu: false };
    buffer.try_reserve_exact(len).map_err(out_of_memory)?;
    Ok(buffer)
}

/// Free buffers by their capacity, which is a class size.
///
/// A class keeps no more buffers than were in use at the same time. Free buffers and those in use together take at
/// most the largest number of bytes that were in use at the same time, and a slack. Before a new buffer exceeds this,
/// the buffers of the class that was not used for the longest time are freed.
#[derive(Debug)]
pub(crate) struct FreeList<T> {
    classes: BTreeMap<usize, Class<T>>,
    /// Bytes of the free buffers, of those in use, and the maximum of the latter so far.
    bytes: usize,
    used_bytes: usize,
    peak_bytes: usize,
    slack_bytes: usize,
    /// Number of uses so far.
    clock: u64,
}

#[derive(Debug)]
struct Class<T> {
    free: Vec<Vec<T>>,
    /// Buffers that were taken and not given back.
    in_use: usize,
    /// The clock at the last use.
    used: u64,
}

impl<T> Default for Class<T> {
    fn default() -> Class<T> {
        Class { free: Vec::new(), in_use: 0, used: 0 }
    }
}

impl<T> Default for FreeList<T> {
    fn default() -> FreeList<T> {
        FreeList {
            classes: BTreeMap::new(),
            bytes: 0,
            used_bytes: 0,
            peak_bytes: 0,
            slack_bytes: SLACK_BYTES,
            clock: 0,
        }
    }
}

impl<T> FreeList<T> {
    /// Takes a buffer with room for `len` elements: a free one of the best fitting class, or a new one. Its length
    /// and values are unspecified. A new buffer replaces a free one that is a little smaller, because it fits the same
    /// requests: a loop whose lengths vary by less than [`max_fit`] needs no more memory than its largest step.
    ///
    /// # Errors
    /// There is no memory for a new one.
    pub(super) fn take(&mut self, len: usize) -> Result<Vec<T>> {
        let size = class_size(len);
        let fitting = self.with_free(size..max_fit(size).saturating_mul(size).saturating_add(1)).next();
        let buffer = match fitting {
            Some(size) => self.pop(size),
            None => {
                let smaller = self.with_free(size / max_fit(size)..size).next_back();
                drop(smaller.map(|size| self.pop(size)));
                self.make_room(size_of::<T>().saturating_mul(size));
                with_capacity(size)?
            }
        };
        self.touch(buffer.capacity()).in_use += 1;
        self.used_bytes += size_of::<T>() * buffer.capacity();
        self.peak_bytes = self.peak_bytes.max(self.used_bytes);
        Ok(buffer)
    }

    /// Frees buffers until a new one of `bytes` bytes is within the limit, or none is left.
    fn make_room(&mut self, bytes: usize) {
        let used = self.used_bytes.saturating_add(bytes);
        let peak = self.peak_bytes.max(used);
        let limit = peak.saturating_add(self.slack_bytes.max(peak / 4));
        while used.saturating_add(self.bytes) > limit && self.evict() {}
    }

    /// The classes in `sizes` that have a free buffer.
    fn with_free(&self, sizes: Range<usize>) -> impl DoubleEndedIterator<Item = usize> {
        self.classes.range(sizes).filter(|(_, class)| !class.free.is_empty()).map(|(&size, _)| size)
    }

    /// Removes a free buffer of a class that has one.
    fn pop(&mut self, size: usize) -> Vec<T> {
        self.bytes -= size_of::<T>() * size;
        self.touch(size).free.pop().expect("the caller found a free buffer")
    }

    /// Keeps a buffer that was taken. Other buffers are freed, unless their capacity is that of one in use.
    pub(super) fn give_back(&mut self, buffer: Vec<T>) {
        let size = buffer.capacity();
        let Some(class) = self.classes.get_mut(&size).filter(|class| class.in_use > 0) else { return };
        class.in_use -= 1;
        self.used_bytes -= size_of::<T>() * size;
        self.bytes += size_of::<T>() * size;
        self.touch(size).free.push(buffer);
    }

    fn touch(&mut self, size: usize) -> &mut Class<T> {
        self.clock += 1;
        let class = self.classes.entry(size).or_default();
        class.used = self.clock;
        class
    }

    /// Frees the buffers of the least recently used class. Returns `false` if there are none.
    fn evict(&mut self) -> bool {
        let classes = self.classes.iter_mut().filter(|(_, class)| !class.free.is_empty());
        let Some((size, class)) = classes.min_by_key(|(_, class)| class.used) else { return false };
        self.bytes -= size_of::<T>() * size * class.free.len();
        class.free = Vec::new();
        true
    }

    /// Bytes of the free buffers.
    #[cfg(test)]
    pub(super) fn free_bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The capacities of the free buffers.
    fn free(list: &FreeList<f32>) -> Vec<usize> {
        let all: Vec<usize> = list.classes.values().flat_map(|c| c.free.iter().map(Vec::capacity)).collect();
        assert_eq!(list.bytes, 4 * all.iter().sum::<usize>());
        all
    }

    #[test]
    fn a_class_is_at_most_an_eighth_larger_than_the_length() {
        let mut previous = 0;
        for len in 256..40_000 {
            let size = class_size(len);
            assert!(len <= size && 8 * size <= 9 * len + 8 && class_size(size) == size, "{len}: {size}");
            assert!(size >= previous);
            previous = size;
        }
        assert_eq!([1025, 1152, 1153].map(class_size), [1152, 1152, 1280]);
    }

    #[test]
    fn similar_lengths_share_buffers_and_the_best_fit_is_taken() {
        let mut list = FreeList::<f32>::default();
        let [small, large] = [1000, 1900].map(|len| list.take(len).unwrap());
        let addresses = [small.as_ptr(), large.as_ptr()];
        list.give_back(large);
        list.give_back(small);
        assert_eq!(free(&list), [1024, 1920]);
        let taken = [990, 961, 950].map(|len| list.take(len).unwrap());
        assert_eq!([taken[0].as_ptr(), taken[1].as_ptr()], addresses);
        assert_eq!(taken.map(|buffer| buffer.capacity()), [1024, 1920, 960]);
        // a buffer of more than twice the class is not taken
        list.give_back(Vec::with_capacity(1920));
        assert_eq!(list.take(800).unwrap().capacity(), 832);
        assert_eq!(free(&list), [1920]);
    }

    #[test]
    fn a_class_keeps_no_more_buffers_than_were_in_use() {
        let mut list = FreeList::<f32>::default();
        for _ in 0..10 {
            let two = [list.take(1000).unwrap(), list.take(1000).unwrap()];
            list.give_back(Vec::with_capacity(1024));
            two.into_iter().for_each(|buffer| list.give_back(buffer));
            list.give_back(Vec::with_capacity(1024));
            list.give_back(Vec::with_capacity(1000));
        }
        assert_eq!(free(&list), [1024, 1024]);
    }

    #[test]
    fn a_larger_buffer_replaces_a_smaller_one() {
        let mut list = FreeList::<f32>::default();
        for len in [1000, 2000, 3000, 1600] {
            let buffer = list.take(len).unwrap();
            list.give_back(buffer);
        }
        assert_eq!(free(&list), [3072]);
        let buffer = list.take(1000).unwrap();
        list.give_back(buffer);
        assert_eq!(free(&list), [1024, 3072], "3072 is too large for 1000");
    }

    #[test]
    fn fewer_rows_use_the_buffers_of_more_rows() {
        const WIDTHS: [usize; 4] = [128, 128, 352, 384];
        let mut list = FreeList::<f32>::default();
        let mut step = |rows: usize| {
            let buffers = WIDTHS.map(|width| list.take(rows * width).unwrap());
            buffers.into_iter().for_each(|buffer| list.give_back(buffer));
            free(&list)
        };
        let first = step(1600);
        for rows in [130, 900, 1600, 260, 1599, 140] {
            assert_eq!(step(rows), first, "{rows} rows");
        }
    }

    #[test]
    fn above_the_limit_the_least_recently_used_class_is_freed() {
        let mut list = FreeList::<f32> { slack_bytes: 4 * 3000, ..FreeList::default() };
        for len in [4096, 1920, 832, 4096] {
            let buffer = list.take(len).unwrap();
            list.give_back(buffer);
        }
        assert_eq!(free(&list), [832, 1920, 4096], "4096 were in use: 7096 may be kept");
        let buffer = list.take(256).unwrap();
        list.give_back(buffer);
        assert_eq!(free(&list), [256, 832, 4096], "1920 was used first");
        let both = [list.take(4096).unwrap(), list.take(4096).unwrap()];
        both.into_iter().for_each(|buffer| list.give_back(buffer));
        let buffer = list.take(1792).unwrap();
        list.give_back(buffer);
        assert_eq!(free(&list), [256, 832, 1792, 4096, 4096], "8192 were in use: 11192 may be kept");
    }

    #[test]
    fn a_step_of_more_than_the_slack_allocates_nothing_when_it_is_repeated() {
        let mut list = FreeList::<f32> { slack_bytes: 4 * 100, ..FreeList::default() };
        let mut step = || {
            let held: Vec<_> = [5000, 700, 3000, 5000].map(|len| list.take(len).unwrap()).into();
            let addresses: Vec<_> = held.iter().map(|buffer| buffer.as_ptr()).collect();
            held.into_iter().for_each(|buffer| list.give_back(buffer));
            addresses
        };
        let mut first = step();
        let mut second = step();
        first.sort();
        second.sort();
        assert_eq!(first, second);
    }
}
