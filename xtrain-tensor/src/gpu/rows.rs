//! Gather, scatter and copy of rows, independent of dtype.
use super::{At, Gpu, Grid, args};
use crate::operands::SlotRange;
use crate::{Dtype, Result, Tensor};

/// Kernels for a word size, and the row length in words.
struct Words {
    gather: &'static str,
    scatter: &'static str,
    copy: &'static str,
    count: usize,
}

impl Words {
    /// The widest word that divides the rows of `x`.
    fn of(x: &Tensor) -> Words {
        Words::of_bytes(x.shape()[1..].iter().product::<usize>() * x.dtype().bytes())
    }

    /// The widest word that divides rows of `bytes` bytes.
    fn of_bytes(bytes: usize) -> Words {
        let (size, [gather, scatter, copy]) = match bytes {
            _ if bytes.is_multiple_of(16) => (16, ["gather_rows_16", "scatter_rows_16", "copy_slots_16"]),
            _ if bytes.is_multiple_of(4) => (4, ["gather_rows_4", "scatter_rows_4", "copy_slots_4"]),
            _ => (2, ["gather_rows_2", "scatter_rows_2", "copy_slots_2"]),
        };
        Words { gather, scatter, copy, count: bytes / size }
    }

    /// One block per (row, tile of words).
    fn grid(&self, rows: usize) -> Grid {
        let threads = self.count.next_multiple_of(32).clamp(32, 256);
        Grid::blocks([rows, self.count.div_ceil(threads), 1], threads as u32)
    }
}

/// `y[n] = x[rows[n]]`. The row indices have been checked.
pub(crate) fn gather_rows(gpu: &Gpu, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    let words = Words::of(x);
    let y = Tensor::on_gpu(gpu, &[&[rows.len()], &x.shape()[1..]].concat(), x.dtype())?;
    let at = gpu.indices(rows)?;
    let args = args![x.at(gpu, x.dtype())?, at, y.at(gpu, x.dtype())?, words.count];
    // SAFETY: x and y have rows of equal length, `rows` are rows of x, one block per row of y.
    unsafe { gpu.launch(words.gather, words.grid(rows.len()), args)? };
    Ok(y)
}

/// `pool[slots[n]] = x[n]`. Slots, shapes and dtypes have been checked.
pub(crate) fn scatter_rows(gpu: &Gpu, pool: &mut Tensor, x: &Tensor, slots: &[u32]) -> Result<()> {
    let words = Words::of(x);
    let at = gpu.indices(slots)?;
    let args = args![pool.at_mut(gpu, x.dtype())?, x.at(gpu, x.dtype())?, at, words.count];
    // SAFETY: x and the pool have rows of equal length, `slots` are rows of the pool.
    unsafe { gpu.launch(words.scatter, words.grid(slots.len()), args) }
}

/// Copies ranges of rows. Ranges, shapes and dtypes have been checked.
pub(crate) fn copy_slots(gpu: &Gpu, to: &mut Tensor, from: &Tensor, moves: &[SlotRange]) -> Result<()> {
    let dtype = from.dtype();
    let (target, source) = (to.at_mut(gpu, dtype)?, from.at(gpu, dtype)?);
    copy(gpu, &Words::of(from), [target, source], moves)
}

/// Copies a range of rows within a pool. The caller has checked that source and destination do not overlap.
pub(crate) fn copy_slots_within(gpu: &Gpu, pool: &mut Tensor, range: SlotRange) -> Result<()> {
    let at = pool.at_mut(gpu, pool.dtype())?;
    copy(gpu, &Words::of(pool), [at, at], &[range])
}

/// Copies a range of f32 elements from one tensor to another, of any shapes. The caller has checked the range.
pub(crate) fn copy_elements(gpu: &Gpu, from: &Tensor, to: &mut Tensor, range: SlotRange) -> Result<()> {
    let (target, source) = (to.at_mut(gpu, Dtype::F32)?, from.at(gpu, Dtype::F32)?);
    copy(gpu, &Words::of_bytes(4), [target, source], &[range])
}

fn copy(gpu: &Gpu, words: &Words, [to, from]: [At; 2], moves: &[SlotRange]) -> Result<()> {
    let word = |n: usize| u32::try_from(n).expect("a tensor of a GPU has less than 2^32 elements");
    let table: Vec<u32> = moves.iter().flat_map(|m| [m.from, m.to, m.len]).map(word).collect();
    let longest = moves.iter().map(|m| m.len).max().unwrap_or(0) * words.count;
    let grid = Grid::blocks([moves.len(), longest.div_ceil(1024).min(1024), 1], 256);
    let args = args![to, from, gpu.indices(&table)?, words.count];
    // SAFETY: both have rows of equal length; the ranges are in bounds and do not overlap.
    unsafe { gpu.launch(words.copy, grid, args) }
}

#[cfg(test)]
mod tests {
    use crate::ops::{self, SlotRange};
    use crate::testing::emulated;
    use crate::{Dtype, Tensor, ThreadSchedule};

    /// The rows that kernels gather, each by an index list of its own, and how many there should be. There are more
    /// lists than the device keeps.
    fn gathered() -> (usize, usize) {
        let (device, n) = (emulated(ThreadSchedule::Forward), 600);
        let x = Tensor::new(&device, &[n, 4], (0..4 * n).map(|i| i as f32).collect()).unwrap();
        let rows: Vec<Tensor> = (0..n).map(|i| ops::gather_rows(&x, &[i as u32]).unwrap()).collect();
        let first = |row: &Tensor| row.to_vec::<f32>().unwrap()[0];
        let right = rows.iter().enumerate().filter(|(i, row)| first(row) == 4.0 * *i as f32).count();
        (right, n)
    }

    /// Before the list of a queued kernel is replaced, the queue is submitted.
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    #[test]
    fn each_of_more_index_lists_than_the_device_keeps_is_read_by_its_kernel() {
        let (right, rows) = gathered();
        assert_eq!(right, rows);
    }

    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    #[cfg(feature = "faults")]
    #[test]
    fn a_list_that_is_replaced_before_its_kernel_runs_is_found() {
        use crate::faults::{self, Fault};

        let (right, rows) = faults::with(Fault::ListOfQueuedKernelReplaced, gathered);
        assert!(right < rows, "{right}");
    }

    /// More than 2^21 words: each thread copies more of them than it has loads in flight.
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    #[test]
    fn a_copy_of_more_words_than_loads_in_flight_has_every_word() {
        let (device, n) = (emulated(ThreadSchedule::Forward), (1 << 21) + 3 * (1 << 18) + 5);
        let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let from = Tensor::new(&device, &[n, 1], values.clone()).unwrap();
        let mut to = Tensor::zeros(&device, &[n + 2, 1], Dtype::F32).unwrap();
        ops::copy_slots(&mut to, &from, &[SlotRange { from: 0, to: 1, len: n }]).unwrap();
        let got = to.to_vec::<f32>().unwrap();
        let differing = got[1..=n].iter().zip(&values).position(|(got, want)| got != want);
        assert_eq!((differing, got[0], got[n + 1]), (None, 0.0, 0.0), "first differing word, words around");
    }
}
