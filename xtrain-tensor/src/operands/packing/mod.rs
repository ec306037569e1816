//! Packing a matrix while its values are read.
mod lines;
mod piece;

pub(crate) use lines::{AllRows, Lines, Packer, RowSink};
pub use piece::Piece;
