//! Heads normed, then turned: queries and keys on their way to an attention.
use super::{Samples, rms_norm, rms_norm_backward, rope, rope_backward, rope_rows, shapes};
use crate::cpu::heads::{self, RopeArgs};
use crate::cpu::norm::Norm;
use crate::cpu::rowsum::ParamGrad;
use crate::cpu::value::with_values;
use crate::{Dtype, Error, Result, RopeTable, Tensor};

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
    check("norm_rope", x, norm.0, turn)?;
    let ((gain, eps), (table, pos)) = (norm, turn);
    let Some(cpu) = x.device().fast() else {
        return rope_rows(&rms_norm(x, gain, eps, Dtype::F32)?, table, pos, x.dtype());
    };
    let norm = Norm { gain: gain.data()?, eps };
    let turn = RopeArgs { table, pos };
    with_values!(x_ = x => Tensor::new(x.device(), x.shape(), heads::norm_rope(cpu, x_, norm, turn)))
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
    let n_heads = check(OP, x, norm.0, turn)?;
    let pairs = samples.times(n_heads);
    if dy.shape() != x.shape() || dw.shape() != norm.0.shape() {
        return Err(Error::Shape { op: OP, want: "dy as x, dw as the gain", got: shapes(&[x, dy, dw]) });
    }
    samples.check(OP, x.shape()[0])?;
    let ((gain, eps), (table, pos)) = (norm, turn);
    let Some(cpu) = x.device().fast() else {
        let back = rope_backward(dy, table, pos)?;
        return rms_norm_backward(x, norm, &back, (dw, &pairs), None);
    };
    let (norm, rope) = (Norm { gain: gain.data()?, eps }, RopeArgs { table, pos });
    let (dy, dw) = (dy.data::<f32>()?, ParamGrad { grad: dw.data_mut()?, samples: &pairs });
    with_values!(x_ = x => {
        Tensor::new(x.device(), x.shape(), heads::norm_rope_backward(cpu, x_, dy, norm, rope, dw))
    })
}

/// The number of heads, if all operands fit.
fn check(op: &'static str, x: &Tensor, gain: &Tensor, turn: (&RopeTable, &[u32])) -> Result<usize> {
    let (n_heads, hd) = rope::check(op, x, turn.0, turn.1)?;
    if gain.shape() != [hd] {
        return Err(Error::Shape { op, want: "x [N, H, hd], a gain [hd]", got: shapes(&[x, gain]) });
    }
    Ok(n_heads)
}
