//! The packer of one matrix.
use std::fmt;

use super::lines::{Lines, RowSink};
use super::piece::{PackValue, Piece};
use crate::error::Result;
use crate::operands::weight::Weight;

/// Packs the values of one matrix, which arrive in pieces.
pub(crate) trait Packer: fmt::Debug + Send {
    /// Keeps the rows exactly, denormals included, because the matrix is a table whose rows will be read.
    fn keep_exact_rows(&mut self);

    /// Appends the next values, row-major.
    fn push(&mut self, values: Piece<'_>);

    /// Returns the weight.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) unless the number of values is that of the shape.
    fn finish(self: Box<Self>) -> Result<Weight>;
}

impl<T: RowSink> Packer for Lines<T> {
    fn keep_exact_rows(&mut self) {
        self.sink.keep_exact_rows();
    }

    fn push(&mut self, values: Piece<'_>) {
        T::Value::convert(values, |values| self.push_values(values));
    }

    fn finish(self: Box<Self>) -> Result<Weight> {
        self.finish_rows()?.finish()
    }
}
