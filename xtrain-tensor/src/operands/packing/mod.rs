//! Packing a matrix while its values are read.
mod lines;
mod piece;
mod quant_block;

pub(crate) use lines::{AllRows, Lines, Packer, RowSink};
pub use piece::Piece;
pub(crate) use quant_block::{BLOCK, HALF};
pub use quant_block::{CodeBits, QuantBlock, QuantFormat};
