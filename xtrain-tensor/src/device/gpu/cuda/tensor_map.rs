//! Tensor maps (TMA), which the driver encodes on the host.
use std::mem::MaybeUninit;

use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};

use super::driver_error::driver_error;
use crate::Result;
use crate::device::gpu::launch::{MAP_WORDS, MatrixBoxes};

/// Encodes the tensor map of a bf16 matrix: boxes with the 128-byte swizzle, zero outside the matrix.
pub(super) fn encode(matrix: &MatrixBoxes) -> Result<[u32; MAP_WORDS]> {
    let size = [matrix.columns as u64, matrix.rows as u64];
    let pitch = [matrix.pitch() as u64];
    let boxes = [MatrixBoxes::COLUMNS as u32, matrix.box_rows as u32];
    let every_element = [1u32; 2];
    let mut map = MaybeUninit::<CUtensorMap>::uninit();
    // SAFETY: a context is current, the arrays have the rank 2, and the driver writes the map if it succeeds.
    let map = unsafe {
        sys::cuTensorMapEncodeTiled(
            map.as_mut_ptr(),
            CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            2,
            matrix.at.0 as *mut _,
            size.as_ptr(),
            pitch.as_ptr(),
            boxes.as_ptr(),
            every_element.as_ptr(),
            CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        .result()
        .map_err(driver_error(&format!("encoding the tensor map of {matrix:?}")))?;
        map.assume_init()
    };
    let mut words = [0; MAP_WORDS];
    for (pair, word) in words.chunks_exact_mut(2).zip(map.opaque) {
        pair.copy_from_slice(&[word as u32, (word >> 32) as u32]);
    }
    Ok(words)
}
