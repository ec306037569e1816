//! The gate of SwiGLU (Shazeer 2020, arXiv:2002.05202).
use super::{shapes, widened};
use crate::{Dtype, Error, Result, Tensor, reference};

/// `silu(gate) up`, of one shape, rounded to `out`.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn silu_mul(gate: &Tensor, up: &Tensor, out: Dtype) -> Result<Tensor> {
    check("silu_mul", &[gate, up])?;
    let (g, u) = (widened(gate)?, widened(up)?);
    let y = g.iter().zip(u.iter()).map(|(&g, &u)| reference::silu_mul(g, u)).collect();
    Tensor::new(gate.device(), gate.shape(), y)?.cast(out)
}

/// The gradients `(dgate, dup)` of [`silu_mul`], rounded to `out` (the products that they enter).
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn silu_mul_backward(gate: &Tensor, up: &Tensor, dy: &Tensor, out: Dtype) -> Result<(Tensor, Tensor)> {
    check("silu_mul_backward", &[gate, up, dy])?;
    let (g, u, dy) = (widened(gate)?, widened(up)?, dy.data::<f32>()?);
    let (dg, du) = (0..dy.len()).map(|i| reference::silu_mul_backward(g[i], u[i], dy[i])).unzip();
    let wrap = |d| Tensor::new(gate.device(), gate.shape(), d)?.cast(out);
    Ok((wrap(dg)?, wrap(du)?))
}

fn check(op: &'static str, xs: &[&Tensor]) -> Result<()> {
    if xs.iter().any(|x| x.shape() != xs[0].shape()) {
        return Err(Error::Shape { op, want: "one shape", got: shapes(xs) });
    }
    Ok(())
}
