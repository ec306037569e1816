//! Whether all values of a tensor are finite.
use crate::cpu::pointwise;
use crate::cpu::value::with_values;
use crate::{Device, Dtype, Result, Tensor, gpu};

/// Whether `x` (f32 or bf16) holds neither a NaN nor an infinity.
///
/// # Errors
/// [`Error::Dtype`](crate::Error::Dtype) for a tensor of integers.
pub fn all_finite(x: &Tensor) -> Result<bool> {
    if let Device::Gpu(gpu) = x.device() {
        return gpu::all_finite(gpu, x);
    }
    if let Some(cpu) = x.device().fast() {
        return Ok(with_values!(x = x => pointwise::all_finite(cpu, x)));
    }
    Ok(match x.dtype() {
        Dtype::BF16 => x.data::<half::bf16>()?.iter().all(|x| x.is_finite()),
        _ => x.data::<f32>()?.iter().all(|x| x.is_finite()),
    })
}
