//! RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467).
use super::checks::{check_float, misfit, refuse, refuse_dtype};
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::{Norm, Samples};
use crate::tensor::Tensor;

/// `y_i = (x_i r) w_i` with `r = 1 / sqrt(mean(x²) + eps)`, for every row.
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
/// [`Error::Shape`](crate::Error::Shape) unless `w` is `[C]`, `C` at least 1; [`Error::Dtype`](crate::Error::Dtype)
/// unless `w` is f32, and `x` and `out` are f32 or bf16.
pub fn rms_norm(x: &Tensor, w: &Tensor, eps: f32, out: Dtype) -> Result<Tensor> {
    check("rms_norm", x, w)?;
    check_float("rms_norm", out)?;
    backend(x.device()).rms_norm(x, Norm { gain: w, eps }, out)
}

/// Returns the gradient of [`rms_norm`] with respect to `x`, f32, and adds the gradient with respect to the gain to
/// `dw [C]`.
///
/// `samples` counts rows of width `C`: for a norm over heads, `(row, head)` pairs. `onto` is the gradient of the
/// other uses of `x`; it is added to the result. `None`: `x` has no other use.
///
/// Order: *sum32* over a row; *rowsum* with chunks of 256 rows in every dtype.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if shapes or samples do not match; [`Error::Dtype`](crate::Error::Dtype) unless
/// `x` is f32 or bf16 and all other tensors are f32.
pub fn rms_norm_backward(
    x: &Tensor,
    norm: Norm<'_>,
    dy: &Tensor,
    dw: &mut Tensor,
    samples: &Samples,
    onto: Option<Tensor>,
) -> Result<Tensor> {
    const OP: &str = "rms_norm_backward";
    let w = norm.gain;
    check(OP, x, w)?;
    refuse(dy.shape() != x.shape() || dw.shape() != w.shape(), OP, "dy as x, dw as w", &[x, w, dy, dw])?;
    if let Some(sum) = onto.as_ref().filter(|sum| sum.shape() != x.shape()) {
        return Err(misfit(OP, "onto as x", &[x, sum]));
    }
    samples.check(OP, x.len() / w.len().max(1))?;
    backend(x.device()).rms_norm_backward(x, norm, dy, dw, samples, onto)
}

fn check(op: &'static str, x: &Tensor, w: &Tensor) -> Result<()> {
    refuse(w.shape() != [x.width()] || w.is_empty(), op, "x [.., C], w [C], C >= 1", &[x, w])?;
    refuse_dtype(w.dtype() != Dtype::F32, op, "a gain in f32", w.dtype())?;
    check_float(op, x.dtype())
}
