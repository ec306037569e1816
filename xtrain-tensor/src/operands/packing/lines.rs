//! Collects values that arrive in pieces into whole rows.
use std::fmt;

use super::piece::{PackValue, Piece};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::operands::weight::Weight;

/// Target number of elements per write.
const WRITE_ELEMENTS: usize = 1 << 16;
/// Rows of a panel.
const PANEL: usize = 32;

/// Packs the values of one matrix, which arrive in pieces.
pub(crate) trait Packer: fmt::Debug + Send {
    /// Keeps the rows exactly, denormals included, because the matrix is a table whose rows will be read.
    fn keep_exact_rows(&mut self);

    /// Appends the next values, row-major.
    fn push(&mut self, values: Piece<'_>);

    /// Returns the weight.
    ///
    /// # Errors
    /// [`Error::Shape`] unless the number of values is that of the shape.
    fn finish(self: Box<Self>) -> Result<Weight>;
}

/// Packs whole rows.
pub(crate) trait RowSink: fmt::Debug + Send {
    type Value: PackValue;

    /// Keeps the rows exactly, denormals included. Does nothing if the sink holds every value exactly.
    fn keep_exact_rows(&mut self) {}

    /// Returns the weight after all rows have been written.
    fn finish(self) -> Result<Weight>;

    /// Packs rows of `width` values, from row `first` on: whole panels, unless they are the last rows.
    fn write(&mut self, first: usize, width: usize, w: &[Self::Value]);
}

/// Collects values and writes them as whole panels, the same number of panels for each thread.
#[derive(Debug)]
pub(crate) struct Lines<T: RowSink> {
    sink: T,
    /// Rows, and values per row.
    shape: [usize; 2],
    /// Values per write.
    write_len: usize,
    pending: Vec<T::Value>,
    /// Rows written so far.
    rows: usize,
    /// Number of values beyond the shape.
    surplus: usize,
}

impl<T: RowSink> Lines<T> {
    /// Collects a matrix `[out, in]`. Its rows are whole values.
    pub(crate) fn new(sink: T, [out, width]: [usize; 2], threads: usize) -> Lines<T> {
        let shape @ [out, width] = [out, width / T::Value::ELEMENTS];
        let rows =
            (WRITE_ELEMENTS / T::Value::ELEMENTS / width).max(1).next_multiple_of(PANEL * threads).min(out);
        Lines { sink, shape, write_len: rows * width, pending: Vec::new(), rows: 0, surplus: 0 }
    }

    /// Appends values. Values that already fill whole panels are not copied.
    fn push_values(&mut self, mut values: &[T::Value]) {
        let [out, width] = self.shape;
        while !values.is_empty() {
            let left = (out - self.rows) * width;
            if left == 0 {
                self.surplus += values.len();
                return;
            }
            let write_len = self.write_len.min(left);
            if self.pending.is_empty() && values.len() >= write_len {
                let whole = if values.len() >= left { left } else { values.len() / write_len * write_len };
                let (now, later) = values.split_at(whole);
                self.write(now);
                values = later;
                continue;
            }
            let (now, later) = values.split_at(values.len().min(write_len - self.pending.len()));
            self.pending.extend_from_slice(now);
            if self.pending.len() == write_len {
                let mut pending = std::mem::take(&mut self.pending);
                self.write(&pending);
                // a complete matrix keeps only its panels
                if self.rows < out {
                    pending.clear();
                    self.pending = pending;
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
}

impl<T: RowSink> Packer for Lines<T> {
    fn keep_exact_rows(&mut self) {
        self.sink.keep_exact_rows();
    }
    fn push(&mut self, values: Piece<'_>) {
        T::Value::convert(values, |values| self.push_values(values));
    }

    fn finish(self: Box<Self>) -> Result<Weight> {
        let Lines { sink, shape: [out, width], pending, rows, surplus, .. } = *self;
        if rows == out && surplus == 0 {
            return sink.finish();
        }
        let elements = T::Value::ELEMENTS;
        let got = (rows * width + pending.len() + surplus) * elements;
        let got = vec![vec![out, width * elements], vec![got]];
        Err(Error::Shape { op: "WeightPacker", want: "as many values as the shape holds", got })
    }
}

/// Collects all rows, which are packed together.
#[derive(Debug)]
pub(crate) struct AllRows<T> {
    device: Device,
    shape: [usize; 2],
    rows: Vec<T>,
    pack: PackRows<T>,
}

/// Packs the values of a matrix `[out, in]` for a device.
type PackRows<T> = fn(Device, [usize; 2], Vec<T>) -> Result<Weight>;

impl<T: PackValue + 'static> AllRows<T> {
    pub(crate) fn packer(device: Device, shape: [usize; 2], pack: PackRows<T>) -> Box<dyn Packer> {
        Box::new(Lines::new(AllRows { device, shape, rows: Vec::new(), pack }, shape, 1))
    }
}

impl<T: PackValue> RowSink for AllRows<T> {
    type Value = T;

    fn write(&mut self, _first: usize, _width: usize, w: &[T]) {
        self.rows.extend_from_slice(w);
    }
    fn finish(self) -> Result<Weight> {
        (self.pack)(self.device, self.shape, self.rows)
    }
}
