//! Root-mean-square normalisation (Zhang & Sennrich 2019, arXiv:1910.07467).
use half::bf16;

use super::{Samples, shapes, widened};
use crate::cpu::norm;
use crate::cpu::value::with_values;
use crate::reference::{self, F32};
use crate::{Device, Dtype, Error, Result, Tensor, gpu};

/// `y_i = (x_i r) w_i` with `r = 1 / sqrt(mean(x²) + eps)`, for every row on its own.
///
/// | operand | shape | |
/// |---|---|---|
/// | `x` | `[.., C]` | f32 or bf16 |
/// | `w` | `[C]` | gain, f32 |
/// | returns | `[.., C]` | in `out` |
///
/// Order: *sum32* over a row.
///
/// # Errors
/// [`Error::Shape`] unless `w` is `[C]`, `C` at least 1.
pub fn rms_norm(x: &Tensor, w: &Tensor, eps: f32, out: Dtype) -> Result<Tensor> {
    check("rms_norm", x, w)?;
    if let Device::Gpu(gpu) = x.device() {
        return gpu::rms_norm(gpu, x, w, eps, out);
    }
    let (device, shape, w) = (x.device(), x.shape(), w.data::<f32>()?);
    let Some(cpu) = device.fast() else {
        return Tensor::new(device, shape, reference::rms_norm(&widened(x)?, w, eps))?.cast(out);
    };
    with_values!(x = x => match out {
        Dtype::BF16 => Tensor::new(device, shape, norm::rms_norm::<_, bf16>(cpu, x, w, eps)),
        _ => Tensor::new(device, shape, norm::rms_norm::<_, f32>(cpu, x, w, eps)),
    })
}

/// The gradient by `x`, f32; the gradient by `w` is added into `dw [C]`.
///
/// `samples` counts rows of width `C`: for a norm over heads, `(row, head)` pairs.
/// Order: *sum32* over a row; *rowsum* with chunks of 256 rows in every dtype.
///
/// # Errors
/// [`Error::Shape`] when shapes or samples do not fit.
pub fn rms_norm_backward(
    x: &Tensor,
    w: &Tensor,
    eps: f32,
    dy: &Tensor,
    (dw, samples): (&mut Tensor, &Samples),
) -> Result<Tensor> {
    const OP: &str = "rms_norm_backward";
    check(OP, x, w)?;
    if dy.shape() != x.shape() || dw.shape() != w.shape() {
        return Err(Error::Shape { op: OP, want: "dy as x, dw as w", got: shapes(&[x, w, dy, dw]) });
    }
    samples.check(OP, x.len() / w.len().max(1))?;
    if let Device::Gpu(gpu) = x.device() {
        return gpu::rms_norm_backward(gpu, [x, w, dy], eps, (dw, samples));
    }
    let (device, shape, w, dy) = (x.device(), x.shape(), w.data::<f32>()?, dy.data::<f32>()?);
    let Some(cpu) = device.fast() else {
        let operands = [&widened(x)?, w, dy];
        let dx = reference::rms_norm_backward::<F32>(operands, eps, dw.data_mut()?, samples);
        return Tensor::new(device, shape, dx);
    };
    let dw = (dw.data_mut::<f32>()?, samples);
    Tensor::new(device, shape, with_values!(x = x => norm::rms_norm_backward(cpu, x, [w, dy], eps, dw)))
}

fn check(op: &'static str, x: &Tensor, w: &Tensor) -> Result<()> {
    if w.shape() != [x.width()] || w.is_empty() {
        return Err(Error::Shape { op, want: "x [.., C], w [C], C >= 1", got: shapes(&[x, w]) });
    }
    Ok(())
}
