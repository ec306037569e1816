//! Root-mean-square normalisation (Zhang & Sennrich 2019, arXiv:1910.07467).
use half::bf16;

use super::{Samples, shapes, widened};
use crate::cpu::gemm::Beta;
use crate::cpu::norm::{self, Norm};
use crate::cpu::rowsum::ParamGrad;
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
    let norm = Norm { gain: w, eps };
    with_values!(x = x => match out {
        Dtype::BF16 => Tensor::new(device, shape, norm::rms_norm::<_, bf16>(cpu, x, norm)),
        _ => Tensor::new(device, shape, norm::rms_norm::<_, f32>(cpu, x, norm)),
    })
}

/// The gradient by `x`, f32, or `onto` plus it; the gradient by `w` is added into `dw [C]`.
///
/// `samples` counts rows of width `C`: for a norm over heads, `(row, head)` pairs. `onto` is what the other uses
/// of `x` gave, shaped as `x`.
/// Order: *sum32* over a row; *rowsum* with chunks of 256 rows in every dtype.
///
/// # Errors
/// [`Error::Shape`] when shapes or samples do not fit.
pub fn rms_norm_backward(
    x: &Tensor,
    (w, eps): (&Tensor, f32),
    dy: &Tensor,
    (dw, samples): (&mut Tensor, &Samples),
    onto: Option<Tensor>,
) -> Result<Tensor> {
    const OP: &str = "rms_norm_backward";
    check(OP, x, w)?;
    if dy.shape() != x.shape() || dw.shape() != w.shape() {
        return Err(Error::Shape { op: OP, want: "dy as x, dw as w", got: shapes(&[x, w, dy, dw]) });
    }
    if let Some(sum) = onto.as_ref().filter(|sum| sum.shape() != x.shape()) {
        return Err(Error::Shape { op: OP, want: "onto as x", got: shapes(&[x, sum]) });
    }
    samples.check(OP, x.len() / w.len().max(1))?;
    let (device, shape) = (x.device(), x.shape());
    let dx = if let Device::Gpu(gpu) = device {
        gpu::rms_norm_backward(gpu, [x, w, dy], eps, (dw, samples))?
    } else if let Some(cpu) = device.fast() {
        let (norm, dy) = (Norm { gain: w.data()?, eps }, dy.data::<f32>()?);
        let dw = ParamGrad { grad: dw.data_mut()?, samples };
        let (mut dx, beta) = match onto {
            Some(sum) => (sum, Beta::One),
            None => (Tensor::new::<f32>(device, shape, cpu.recycler.acquire(x.len()))?, Beta::Zero),
        };
        let out = dx.data_mut()?;
        with_values!(x = x => norm::rms_norm_backward(cpu, x, dy, norm, dw, out, beta));
        return Ok(dx);
    } else {
        let (x, dw) = (&widened(x)?, dw.data_mut()?);
        let dx = reference::rms_norm_backward::<F32>(x, w.data()?, dy.data()?, eps, dw, samples);
        Tensor::new(device, shape, dx)?
    };
    match onto {
        None => Ok(dx),
        Some(mut sum) => super::accumulate(&mut sum, &dx).map(|()| sum),
    }
}

fn check(op: &'static str, x: &Tensor, w: &Tensor) -> Result<()> {
    if w.shape() != [x.width()] || w.is_empty() {
        return Err(Error::Shape { op, want: "x [.., C], w [C], C >= 1", got: shapes(&[x, w]) });
    }
    Ok(())
}
