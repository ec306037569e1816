//! Tensor maps of the emulator: `xtemu::TensorMap` of kernels/emu/mbarrier.hpp.
use crate::device::gpu::launch::{MAP_WORDS, MatrixBoxes};
use crate::{Error, Result};

/// Marks a tensor map; `xtemu::TENSOR_MAP`.
const MAGIC: u64 = 0x7061_6d72_6f73_6e74;

/// Encodes a tensor map.
///
/// # Errors
/// [`Error::Device`] where the driver would refuse it.
pub(super) fn encode(matrix: &MatrixBoxes) -> Result<[u32; MAP_WORDS]> {
    let &MatrixBoxes { at, rows, columns, box_rows } = matrix;
    if !matrix.is_readable() || box_rows > 256 {
        return Err(Error::device(format!("no tensor map of {matrix:?}")));
    }
    let sizes = [columns, rows, matrix.pitch(), MatrixBoxes::COLUMNS, box_rows].map(|n| n as u64);
    let mut words = [0; MAP_WORDS];
    for (pair, value) in words.chunks_exact_mut(2).zip([MAGIC, at.0].into_iter().chain(sizes)) {
        pair.copy_from_slice(&[value as u32, (value >> 32) as u32]);
    }
    Ok(words)
}
