//! Whether all values of a tensor are finite.
use crate::cpu::pointwise;
use crate::cpu::value::with_values;
use crate::{Device, Dtype, Result, Tensor, gpu};

/// The place of the first of `xs` (f32 or bf16, on one device) that holds a NaN or an infinity.
///
/// # Errors
/// [`Error::Dtype`](crate::Error::Dtype) for a tensor of integers.
pub fn first_non_finite(xs: &[&Tensor]) -> Result<Option<usize>> {
    if let Some(Device::Gpu(gpu)) = xs.first().map(|x| x.device()) {
        return gpu::first_non_finite(gpu, xs);
    }
    for (at, x) in xs.iter().enumerate() {
        if !all_finite(x)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Whether `x` (f32 or bf16) holds neither a NaN nor an infinity.
///
/// # Errors
/// [`Error::Dtype`](crate::Error::Dtype) for a tensor of integers.
pub fn all_finite(x: &Tensor) -> Result<bool> {
    if let Device::Gpu(gpu) = x.device() {
        return Ok(gpu::first_non_finite(gpu, &[x])?.is_none());
    }
    if let Some(cpu) = x.device().fast() {
        return Ok(with_values!(x = x => pointwise::all_finite(cpu, x)));
    }
    Ok(match x.dtype() {
        Dtype::BF16 => x.data::<half::bf16>()?.iter().all(|x| x.is_finite()),
        _ => x.data::<f32>()?.iter().all(|x| x.is_finite()),
    })
}
