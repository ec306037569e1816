//! The elements of a tensor in host memory as bytes.
use half::bf16;
use xtrain_tensor::{Dtype, Result, Tensor};

/// The bytes of the elements.
///
/// # Errors
/// If they are on a GPU.
pub(crate) fn bytes(t: &Tensor) -> Result<&[u8]> {
    Ok(match t.dtype() {
        Dtype::BF16 => bytemuck::cast_slice(t.data::<bf16>()?),
        Dtype::U32 => bytemuck::cast_slice(t.data::<u32>()?),
        _ => bytemuck::cast_slice(t.data::<f32>()?),
    })
}

/// The bytes of the elements, to be written.
///
/// # Errors
/// As [`bytes`].
pub(crate) fn bytes_mut(t: &mut Tensor) -> Result<&mut [u8]> {
    Ok(match t.dtype() {
        Dtype::BF16 => bytemuck::cast_slice_mut(t.data_mut::<bf16>()?),
        Dtype::U32 => bytemuck::cast_slice_mut(t.data_mut::<u32>()?),
        _ => bytemuck::cast_slice_mut(t.data_mut::<f32>()?),
    })
}
