//! Element-wise operations: add, accumulate, cast, silu_mul.
use super::{Gpu, Grid, args};
use crate::{Dtype, Error, Result, Tensor};

/// `a + b` for f32 tensors of equal shape.
pub(crate) fn add(gpu: &Gpu, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let y = Tensor::on_gpu(gpu, a.shape(), Dtype::F32)?;
    let n = a.len();
    let args = args![a.at(gpu, Dtype::F32)?, b.at(gpu, Dtype::F32)?, y.at(gpu, Dtype::F32)?, n];
    // SAFETY: three buffers of `n` f32.
    unsafe { gpu.launch("add_f32", Grid::over(n, 256), args)? };
    Ok(y)
}

/// `a = a + b` for f32 tensors of equal shape.
pub(crate) fn accumulate(gpu: &Gpu, a: &mut Tensor, b: &Tensor) -> Result<()> {
    let n = a.len();
    let args = args![a.at_mut(gpu, Dtype::F32)?, b.at(gpu, Dtype::F32)?, n];
    // SAFETY: two buffers of `n` f32.
    unsafe { gpu.launch("accumulate_f32", Grid::over(n, 256), args) }
}

/// Casts `x` from f32 to bf16 or from bf16 to f32.
pub(crate) fn cast(gpu: &Gpu, x: &Tensor, dtype: Dtype) -> Result<Tensor> {
    let kernel = match (x.dtype(), dtype) {
        (Dtype::F32, Dtype::BF16) => "cast_f32_bf16",
        (Dtype::BF16, Dtype::F32) => "cast_bf16_f32",
        _ => return Err(Error::Dtype { op: "Tensor::cast", want: "f32 or bf16", got: x.dtype() }),
    };
    let y = Tensor::on_gpu(gpu, x.shape(), dtype)?;
    let args = args![x.at(gpu, x.dtype())?, y.at(gpu, dtype)?, x.len() as u64];
    // SAFETY: two buffers with the same number of elements; one thread per eight.
    unsafe { gpu.launch(kernel, Grid::over(x.len().div_ceil(8), 256), args)? };
    Ok(y)
}

/// `silu(gate) * up` in dtype `out`; gate and up have equal shape and dtype.
pub(crate) fn silu_mul(gpu: &Gpu, gate: &Tensor, up: &Tensor, out: Dtype) -> Result<Tensor> {
    let dtype = gate.dtype();
    let kernel = kernel_of!("silu_mul", dtype, out)?;
    let y = Tensor::on_gpu(gpu, gate.shape(), out)?;
    let n = gate.len();
    let args = args![gate.at(gpu, dtype)?, up.at(gpu, dtype)?, y.at(gpu, out)?, n as u64];
    // SAFETY: three buffers of `n` elements; one thread per four elements.
    unsafe { gpu.launch(kernel, Grid::over(n.div_ceil(4), 256), args)? };
    Ok(y)
}

/// `[dgate, dup]` in dtype `out`; gate and up have equal dtype, `dy` is f32, all shapes are equal.
pub(crate) fn silu_mul_backward(
    gpu: &Gpu,
    [gate, up]: [&Tensor; 2],
    dy: &Tensor,
    out: Dtype,
) -> Result<[Tensor; 2]> {
    let dtype = gate.dtype();
    let kernel = kernel_of!("silu_mul_backward", dtype, out)?;
    let [dg, du] = [Tensor::on_gpu(gpu, gate.shape(), out)?, Tensor::on_gpu(gpu, gate.shape(), out)?];
    let n = gate.len();
    let (gate, up, dy) = (gate.at(gpu, dtype)?, up.at(gpu, dtype)?, dy.at(gpu, Dtype::F32)?);
    let args = args![gate, up, dy, dg.at(gpu, out)?, du.at(gpu, out)?, n as u64];
    // SAFETY: five buffers of `n` elements; one thread per four elements.
    unsafe { gpu.launch(kernel, Grid::over(n.div_ceil(4), 256), args)? };
    Ok([dg, du])
}
