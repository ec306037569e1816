//! Packing a matrix while its values are read.
mod lines;
mod packer;
mod piece;

pub(crate) use lines::{Lines, RowSink};
pub(crate) use packer::Packer;
pub(crate) use piece::PackValue;
pub use piece::Piece;
