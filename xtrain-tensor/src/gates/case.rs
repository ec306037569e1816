//! A case: an operation with its operands, ready to run on any device.
use std::fmt;
use std::ops::Range;

use super::Rows;
use crate::{Device, Dtype, Result, Stored, Tensor};

/// One case of one operation.
pub(super) struct Case {
    /// The operation.
    pub(super) op: &'static str,
    /// Its shapes, dtype and kind of values.
    pub(super) name: String,
    /// What its operands are made from.
    pub(super) seed: u64,
    pub(super) run: Run,
}

/// Runs an operation on some of its rows.
pub(super) type OnRows = dyn Fn(&Device, &[usize]) -> Result<Rows>;

/// Runs an operation on its samples, in these micro-batches.
pub(super) type OnSamples = dyn Fn(&Device, &[Range<usize>]) -> Result<Rows>;

/// What an operation is a function of.
pub(super) enum Run {
    /// Each of so many rows (or sequences) gives its own values, whatever runs beside it.
    Rows(usize, Box<OnRows>),
    /// So many samples are summed into one gradient, whatever micro-batches they come in.
    Sums(usize, Box<OnSamples>),
}

impl Case {
    pub(super) fn rows(
        op: &'static str,
        (name, seed): (String, u64),
        n: usize,
        run: impl Fn(&Device, &[usize]) -> Result<Rows> + 'static,
    ) -> Case {
        Case { op, name, seed, run: Run::Rows(n, Box::new(run)) }
    }

    pub(super) fn sums(
        op: &'static str,
        (name, seed): (String, u64),
        n: usize,
        run: impl Fn(&Device, &[Range<usize>]) -> Result<Rows> + 'static,
    ) -> Case {
        Case { op, name, seed, run: Run::Sums(n, Box::new(run)) }
    }

    /// All rows, or all samples in one micro-batch.
    pub(super) fn whole(&self, device: &Device) -> Result<Rows> {
        match &self.run {
            Run::Rows(n, run) => run(device, &(0..*n).collect::<Vec<_>>()),
            Run::Sums(n, run) => run(device, std::slice::from_ref(&(0..*n))),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.op, self.name)
    }
}

/// A tensor of these values in `dtype`.
pub(super) fn tensor(device: &Device, shape: &[usize], x: &[f32], dtype: Dtype) -> Result<Tensor> {
    Tensor::new(device, shape, x.to_vec())?.cast(dtype)
}

/// Those rows of a matrix of `width` columns.
pub(super) fn pick<T: Copy>(x: &[T], width: usize, rows: &[usize]) -> Vec<T> {
    rows.iter().flat_map(|&r| &x[r * width..][..width]).copied().collect()
}

/// The values of a tensor in `n` rows.
pub(super) fn split(x: &Tensor, n: usize) -> Result<Rows> {
    Ok(chunks(&x.to_f32()?.to_vec::<f32>()?, n))
}

/// Values in `n` rows.
pub(super) fn chunks<T: Stored>(x: &[T], n: usize) -> Vec<Vec<T>> {
    let width = x.len() / n.max(1);
    (0..n).map(|r| x[r * width..][..width].to_vec()).collect()
}

/// Each row of `a` followed by that of `b`.
pub(super) fn join(mut a: Rows, b: Rows) -> Rows {
    a.iter_mut().zip(b).for_each(|(a, b)| a.extend(b));
    a
}
