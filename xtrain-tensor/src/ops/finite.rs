//! Whether all values of a tensor are finite.
use crate::{Device, Dtype, Result, Tensor, gpu};

/// Whether `x` (f32 or bf16) holds neither a NaN nor an infinity.
///
/// # Errors
/// [`Error::Dtype`](crate::Error::Dtype) for a tensor of integers.
pub fn all_finite(x: &Tensor) -> Result<bool> {
    if let Device::Gpu(gpu) = x.device() {
        return gpu::all_finite(gpu, x);
    }
    Ok(match x.dtype() {
        Dtype::BF16 => x.data::<half::bf16>()?.iter().all(|x| x.is_finite()),
        // block by block, each without a branch
        _ => x.data::<f32>()?.chunks(4096).all(|x| x.iter().fold(true, |all, x| all & x.is_finite())),
    })
}
