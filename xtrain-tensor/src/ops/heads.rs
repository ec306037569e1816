//! Heads normed, then turned: queries and keys on their way to an attention.
use super::rope::check as check_rope;
use super::shapes;
use crate::dispatch::backend;
use crate::error::{Error, Result};
use crate::operands::{Norm, RopeArgs, RopeTable, Samples};
use crate::tensor::Tensor;

/// [`rms_norm`] over each head in f32, then [`rope_rows`], in one walk: their bits.
///
/// | operand | shape | |
/// |---|---|---|
/// | `x` | `[N, H, hd]` | f32 or bf16 |
/// | `norm` | `[hd]` | gain, f32; eps |
/// | `turn` | | a table of `hd`, and a position for each row |
/// | returns | `[N, H, hd]` | in the dtype of `x` |
///
/// # Errors
/// Those of the two.
pub fn norm_rope(x: &Tensor, norm: (&Tensor, f32), turn: (&RopeTable, &[u32])) -> Result<Tensor> {
    let (norm, rope) = (Norm { gain: norm.0, eps: norm.1 }, RopeArgs { table: turn.0, positions: turn.1 });
    check("norm_rope", x, norm, rope)?;
    backend(x.device()).norm_rope(x, norm, rope)
}

/// The gradient of [`norm_rope`] by `x`, f32; that by the gain is added into `dw [hd]`. `samples` counts the `N`
/// rows. The bits of [`rope_backward`] and [`rms_norm_backward`] over `(row, head)` pairs.
///
/// # Errors
/// Those of the two.
pub fn norm_rope_backward(
    x: &Tensor,
    norm: (&Tensor, f32),
    turn: (&RopeTable, &[u32]),
    dy: &Tensor,
    (dw, samples): (&mut Tensor, &Samples),
) -> Result<Tensor> {
    const OP: &str = "norm_rope_backward";
    let (norm, rope) = (Norm { gain: norm.0, eps: norm.1 }, RopeArgs { table: turn.0, positions: turn.1 });
    check(OP, x, norm, rope)?;
    if dy.shape() != x.shape() || dw.shape() != norm.gain.shape() {
        return Err(Error::Shape { op: OP, want: "dy as x, dw as the gain", got: shapes(&[x, dy, dw]) });
    }
    samples.check(OP, x.shape()[0])?;
    backend(x.device()).norm_rope_backward(x, norm, rope, dy, dw, samples)
}

fn check(op: &'static str, x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<()> {
    check_rope(op, x, rope)?;
    if norm.gain.shape() != [rope.table.head_dim()] {
        return Err(Error::Shape { op, want: "x [N, H, hd], a gain [hd]", got: shapes(&[x, norm.gain]) });
    }
    Ok(())
}
