//! Packing a matrix while its values are read.
mod lines;
mod piece;

pub(crate) use lines::{Lines, Packer, RowSink};
pub(crate) use piece::PackValue;
pub use piece::Piece;
