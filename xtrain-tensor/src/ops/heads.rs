//! RMSNorm over each head, then RoPE: queries and keys before an attention.
use super::checks::refuse;
use super::rope::check as check_rope;
use crate::dispatch::backend;
use crate::error::Result;
use crate::operands::{Norm, RopeArgs, Samples};
use crate::tensor::Tensor;

/// [`rms_norm`](super::rms_norm) over each head in f32, then [`rope_rows`](super::rope_rows). Bit-identical to the
/// two separate operations.
///
/// | operand | shape | |
/// |---|---|---|
/// | `x` | `[N, H, hd]` | f32 or bf16 |
/// | `norm` | gain `[hd]` | f32 |
/// | `rope` | `N` positions | a table of heads of `hd` values |
/// | returns | `[N, H, hd]` | in the dtype of `x` |
///
/// # Errors
/// Those of the two operations.
pub fn norm_rope(x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<Tensor> {
    check("norm_rope", x, norm, rope)?;
    backend(x.device()).norm_rope(x, norm, rope)
}

/// Returns the gradient of [`norm_rope`] with respect to `x`, f32, and adds the gradient with respect to the gain to
/// `dw [hd]`.
///
/// `samples` counts the `N` rows. Bit-identical to [`rope_backward`](super::rope_backward), then
/// [`rms_norm_backward`](super::rms_norm_backward) over `(row, head)` pairs.
///
/// # Errors
/// Those of the two operations.
pub fn norm_rope_backward(
    x: &Tensor,
    norm: Norm<'_>,
    rope: RopeArgs<'_>,
    dy: &Tensor,
    dw: &mut Tensor,
    samples: &Samples,
) -> Result<Tensor> {
    const OP: &str = "norm_rope_backward";
    check(OP, x, norm, rope)?;
    refuse(
        dy.shape() != x.shape() || dw.shape() != norm.gain.shape(),
        OP,
        "dy as x, dw as the gain",
        &[x, dy, dw],
    )?;
    samples.check(OP, x.shape()[0])?;
    backend(x.device()).norm_rope_backward(x, norm, rope, dy, dw, samples)
}

fn check(op: &'static str, x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<()> {
    check_rope(op, x, rope)?;
    refuse(norm.gain.shape() != [rope.table.head_dim()], op, "x [N, H, hd], a gain [hd]", &[x, norm.gain])
}
