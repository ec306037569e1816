//! The gate of SwiGLU (Shazeer 2020, arXiv:2002.05202).
use super::checks::refuse;
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::tensor::Tensor;

/// `silu(gate) up`, of one shape, rounded to `out`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the shapes differ.
pub fn silu_mul(gate: &Tensor, up: &Tensor, out: Dtype) -> Result<Tensor> {
    check("silu_mul", &[gate, up])?;
    backend(gate.device()).silu_mul(gate, up, out)
}

/// The gradients `[dgate, dup]` of [`silu_mul`], rounded to `out`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the shapes differ.
pub fn silu_mul_backward(gate: &Tensor, up: &Tensor, dy: &Tensor, out: Dtype) -> Result<[Tensor; 2]> {
    check("silu_mul_backward", &[gate, up, dy])?;
    backend(gate.device()).silu_mul_backward(gate, up, dy, out)
}

fn check(op: &'static str, xs: &[&Tensor]) -> Result<()> {
    refuse(xs.iter().any(|x| x.shape() != xs[0].shape()), op, "one shape", xs)
}
