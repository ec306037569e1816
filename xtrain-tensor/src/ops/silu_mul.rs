//! The gate of SwiGLU (Shazeer 2020, arXiv:2002.05202).
use half::bf16;

use super::{shapes, widened};
use crate::cpu::pointwise;
use crate::cpu::value::with_values;
use crate::{Device, Dtype, Error, Result, Tensor, gpu, reference};

/// `silu(gate) up`, of one shape, rounded to `out`.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn silu_mul(gate: &Tensor, up: &Tensor, out: Dtype) -> Result<Tensor> {
    check("silu_mul", &[gate, up])?;
    if let Device::Gpu(gpu) = gate.device() {
        return gpu::silu_mul(gpu, gate, up, out);
    }
    let (device, shape) = (gate.device(), gate.shape());
    let Some(cpu) = device.fast() else {
        let (g, u) = (widened(gate)?, widened(up)?);
        let y = g.iter().zip(u.iter()).map(|(&g, &u)| reference::silu_mul(g, u)).collect();
        return Tensor::new(device, shape, y)?.cast(out);
    };
    with_values!(g = gate => match out {
        Dtype::BF16 => Tensor::new(device, shape, pointwise::silu_mul::<_, bf16>(cpu, g, up.data()?)),
        _ => Tensor::new(device, shape, pointwise::silu_mul::<_, f32>(cpu, g, up.data()?)),
    })
}

/// The gradients `(dgate, dup)` of [`silu_mul`], rounded to `out` (the products that they enter).
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn silu_mul_backward(gate: &Tensor, up: &Tensor, dy: &Tensor, out: Dtype) -> Result<(Tensor, Tensor)> {
    check("silu_mul_backward", &[gate, up, dy])?;
    if let Device::Gpu(gpu) = gate.device() {
        return gpu::silu_mul_backward(gpu, [gate, up], dy, out);
    }
    let (device, shape, dy) = (gate.device(), gate.shape(), dy.data::<f32>()?);
    let Some(cpu) = device.fast() else {
        let (g, u) = (widened(gate)?, widened(up)?);
        let (dg, du) = (0..dy.len()).map(|i| reference::silu_mul_backward(g[i], u[i], dy[i])).unzip();
        let wrap = |d| Tensor::new(device, shape, d)?.cast(out);
        return Ok((wrap(dg)?, wrap(du)?));
    };
    with_values!(g = gate => {
        let u = up.data()?;
        if out == Dtype::BF16 {
            let (dg, du) = pointwise::silu_mul_backward::<_, bf16>(cpu, g, u, dy);
            Ok((Tensor::new(device, shape, dg)?, Tensor::new(device, shape, du)?))
        } else {
            let (dg, du) = pointwise::silu_mul_backward::<_, f32>(cpu, g, u, dy);
            Ok((Tensor::new(device, shape, dg)?, Tensor::new(device, shape, du)?))
        }
    })
}

fn check(op: &'static str, xs: &[&Tensor]) -> Result<()> {
    if xs.iter().any(|x| x.shape() != xs[0].shape()) {
        return Err(Error::Shape { op, want: "one shape", got: shapes(xs) });
    }
    Ok(())
}
