//! Whether all values of a tensor are finite: four bytes to the host.
use super::{Gpu, Grid, args};
use crate::{Dtype, Result, Tensor};

/// Whether `x` holds neither a NaN nor an infinity.
pub(crate) fn all_finite(gpu: &Gpu, x: &Tensor) -> Result<bool> {
    let kernel = if x.dtype() == Dtype::BF16 { "all_finite_bf16" } else { "all_finite_f32" };
    let dtype = if x.dtype() == Dtype::BF16 { Dtype::BF16 } else { Dtype::F32 };
    let found = gpu.zeros(4)?;
    let blocks = x.len().div_ceil(256).min(1024);
    // SAFETY: x holds as many elements, `found` one u32.
    unsafe {
        let args = args![x.at(gpu, dtype)?, found.arg(), x.len() as u64];
        gpu.launch(kernel, Grid::blocks([blocks, 1, 1], 256), args)?;
    }
    Ok(gpu.download::<u32>(&found)? == [0])
}
