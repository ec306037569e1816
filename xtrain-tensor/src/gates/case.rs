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
    /// The seed of its operands.
    pub(super) seed: u64,
    pub(super) run: Run,
}

/// Runs an operation on some of its rows.
pub(super) type OnRows = dyn Fn(&Device, &[usize]) -> Result<Rows>;

/// Runs an operation on its training examples, split into these micro-batches.
pub(super) type OnSamples = dyn Fn(&Device, &[Range<usize>]) -> Result<Rows>;

/// How the result of an operation is composed.
pub(super) enum Run {
    /// `n` rows (or sequences). Each has its own values, independent of the rows computed with it.
    Rows(usize, Box<OnRows>),
    /// `n` training examples, summed into one gradient that does not depend on the micro-batches.
    Sums(usize, Box<OnSamples>),
}

impl Case {
    pub(super) fn rows(
        op: &'static str,
        name: String,
        seed: u64,
        n: usize,
        run: impl Fn(&Device, &[usize]) -> Result<Rows> + 'static,
    ) -> Case {
        Case { op, name, seed, run: Run::Rows(n, Box::new(run)) }
    }

    pub(super) fn sums(
        op: &'static str,
        name: String,
        seed: u64,
        n: usize,
        run: impl Fn(&Device, &[Range<usize>]) -> Result<Rows> + 'static,
    ) -> Case {
        Case { op, name, seed, run: Run::Sums(n, Box::new(run)) }
    }

    /// Runs all rows, or all training examples as one micro-batch.
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

/// A tensor with these values in `dtype`.
pub(super) fn tensor(device: &Device, shape: &[usize], x: &[f32], dtype: Dtype) -> Result<Tensor> {
    Tensor::new(device, shape, x.to_vec())?.cast(dtype)
}

/// The rows `rows` of a matrix with `width` columns.
pub(super) fn pick<T: Copy>(x: &[T], width: usize, rows: &[usize]) -> Vec<T> {
    rows.iter().flat_map(|&r| &x[r * width..][..width]).copied().collect()
}

/// The values of a tensor, split into `n` rows.
pub(super) fn split(x: &Tensor, n: usize) -> Result<Rows> {
    Ok(chunks(&x.to_f32()?.to_vec::<f32>()?, n))
}

/// Values, split into `n` rows.
pub(super) fn chunks<T: Stored>(x: &[T], n: usize) -> Vec<Vec<T>> {
    let width = x.len() / n.max(1);
    (0..n).map(|r| x[r * width..][..width].to_vec()).collect()
}

/// Each row of `a` followed by the row of `b`.
pub(super) fn join(mut a: Rows, b: Rows) -> Rows {
    a.iter_mut().zip(b).for_each(|(a, b)| a.extend(b));
    a
}
