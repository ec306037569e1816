//! Values that come in pieces, and leave as whole rows.
use std::fmt;

use super::piece::PackValue;
use crate::error::{Error, Result};
use crate::operands::weight::Weight;

/// Elements that wait to be packed together.
const WAITING: usize = 1 << 16;
/// Rows of a panel.
const PANEL: usize = 32;

/// Packs whole rows.
pub(crate) trait RowSink: fmt::Debug + Send {
    /// The element type.
    type Value: PackValue;

    /// Keeps the rows exactly, denormals included.
    fn keep_exact_rows(&mut self);

    /// The weight, after all rows.
    fn finish(self) -> Result<Weight>;

    /// The rows of `width` values from row `first` on: as many as make whole panels, or all that are left.
    fn write(&mut self, first: usize, width: usize, w: &[Self::Value]);
}

/// Gives its values on in whole panels, the same number for each thread.
#[derive(Debug)]
pub(crate) struct Lines<T: RowSink> {
    pub(crate) sink: T,
    shape: [usize; 2],
    /// Elements that are packed together.
    most: usize,
    waiting: Vec<T::Value>,
    /// That were written.
    rows: usize,
    /// Values beyond the shape.
    beyond: usize,
}

impl<T: RowSink> Lines<T> {
    pub(crate) fn new(sink: T, shape: [usize; 2], threads: usize) -> Lines<T> {
        let [out, width] = shape;
        let rows = (WAITING / width).max(1).next_multiple_of(PANEL * threads).min(out);
        Lines { sink, shape, most: rows * width, waiting: Vec::new(), rows: 0, beyond: 0 }
    }

    /// The next values. Those that make whole panels where they lie are not copied.
    pub(crate) fn push_values(&mut self, mut values: &[T::Value]) {
        let [out, width] = self.shape;
        while !values.is_empty() {
            let left = (out - self.rows) * width;
            if left == 0 {
                self.beyond += values.len();
                return;
            }
            let most = self.most.min(left);
            if self.waiting.is_empty() && values.len() >= most {
                let whole = if values.len() >= left { left } else { values.len() / most * most };
                let (now, later) = values.split_at(whole);
                self.write(now);
                values = later;
                continue;
            }
            let (now, later) = values.split_at(values.len().min(most - self.waiting.len()));
            self.waiting.extend_from_slice(now);
            if self.waiting.len() == most {
                let mut waiting = std::mem::take(&mut self.waiting);
                self.write(&waiting);
                // a matrix that is complete may wait long for others: it keeps nothing but its panels
                if self.rows < out {
                    waiting.clear();
                    self.waiting = waiting;
                }
            }
            values = later;
        }
    }

    fn write(&mut self, w: &[T::Value]) {
        let width = self.shape[1];
        self.sink.write(self.rows, width, w);
        self.rows += w.len() / width;
    }

    /// What took all of them.
    ///
    /// # Errors
    /// [`Error::Shape`] unless there were as many values as the shape holds.
    pub(crate) fn finish_rows(self) -> Result<T> {
        let Lines { sink, shape: [out, width], waiting, rows, beyond, .. } = self;
        if rows == out && beyond == 0 {
            return Ok(sink);
        }
        let got = vec![vec![out, width], vec![rows * width + waiting.len() + beyond]];
        Err(Error::Shape { op: "WeightPacker", want: "as many values as the shape holds", got })
    }
}
