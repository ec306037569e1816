//! The samples of a batch: the smallest units that a micro-batch can hold.
use std::ops::Range;

use crate::error::{Error, Result};

/// Consecutive groups of rows. Sums over rows restart their chunks at the first row of each sample, so a gradient
/// does not depend on how the samples of a step are split into micro-batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Samples {
    bounds: Vec<usize>,
}

impl Default for Samples {
    /// No samples.
    fn default() -> Samples {
        Samples::of_lengths([])
    }
}

impl Samples {
    /// Creates consecutive samples with these numbers of rows.
    ///
    /// # Panics
    /// If there are more than `usize::MAX` rows.
    pub fn of_lengths(lengths: impl IntoIterator<Item = usize>) -> Samples {
        let mut bounds = vec![0];
        bounds.extend(lengths.into_iter().scan(0, |at, n| {
            *at = rows_after(*at, n);
            Some(*at)
        }));
        Samples { bounds }
    }

    /// Adds a sample with this number of rows.
    ///
    /// # Panics
    /// If there are more than `usize::MAX` rows.
    pub fn push(&mut self, length: usize) {
        self.bounds.push(rows_after(self.rows(), length));
    }

    /// The number of rows of all samples.
    pub fn rows(&self) -> usize {
        self.bounds.last().copied().unwrap_or(0)
    }

    /// The range of rows of each sample.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.bounds.windows(2).map(|w| w[0]..w[1])
    }

    /// The same samples with `n` rows in place of each row, as in a norm over the heads of a row.
    ///
    /// # Panics
    /// If there are more than `usize::MAX` rows.
    pub fn times(&self, n: usize) -> Samples {
        let times = |b: &usize| b.checked_mul(n).expect("the number of rows fits usize");
        Samples { bounds: self.bounds.iter().map(times).collect() }
    }

    /// First row and end of each chunk of at most `rows` rows, counted from the first row of its sample.
    pub(crate) fn chunks(&self, rows: usize) -> Vec<u32> {
        let of = |sample: Range<usize>| {
            let end = sample.end;
            sample.step_by(rows).flat_map(move |start| [start as u32, end.min(start + rows) as u32])
        };
        self.ranges().flat_map(of).collect()
    }

    pub(crate) fn check(&self, op: &'static str, rows: usize) -> Result<()> {
        if self.rows() == rows {
            return Ok(());
        }
        let got = vec![vec![self.rows()], vec![rows]];
        Err(Error::Shape { op, want: "samples that cover all rows", got })
    }
}

/// The end of a sample of `length` rows that starts at row `start`. Checked in every build: kernels read the rows.
fn rows_after(start: usize, length: usize) -> usize {
    start.checked_add(length).expect("the number of rows fits usize")
}
