//! Collects values that arrive in pieces into whole rows.
use std::fmt;

use super::piece::PackValue;
use crate::error::{Error, Result};
use crate::operands::weight::Weight;

/// Target number of elements per write.
const WAITING: usize = 1 << 16;
/// Rows of a panel.
const PANEL: usize = 32;

/// Packs whole rows.
pub(crate) trait RowSink: fmt::Debug + Send {
    /// The element type.
    type Value: PackValue;

    /// Keeps the rows exactly, denormals included.
    fn keep_exact_rows(&mut self);

    /// Returns the weight after all rows have been written.
    fn finish(self) -> Result<Weight>;

    /// Packs rows of `width` values, from row `first` on. Their number fills whole panels, unless they are the last
    /// rows.
    fn write(&mut self, first: usize, width: usize, w: &[Self::Value]);
}

/// Collects values and writes them as whole panels, the same number of panels for each thread.
#[derive(Debug)]
pub(crate) struct Lines<T: RowSink> {
    pub(crate) sink: T,
    shape: [usize; 2],
    /// Elements per write.
    most: usize,
    waiting: Vec<T::Value>,
    /// Rows written so far.
    rows: usize,
    /// Number of values beyond the shape.
    beyond: usize,
}

impl<T: RowSink> Lines<T> {
    pub(crate) fn new(sink: T, shape: [usize; 2], threads: usize) -> Lines<T> {
        let [out, width] = shape;
        let rows = (WAITING / width).max(1).next_multiple_of(PANEL * threads).min(out);
        Lines { sink, shape, most: rows * width, waiting: Vec::new(), rows: 0, beyond: 0 }
    }

    /// Appends values. Values that already fill whole panels are not copied.
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
                // a complete matrix keeps only its panels
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

    /// Returns the sink after all values have been written.
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
