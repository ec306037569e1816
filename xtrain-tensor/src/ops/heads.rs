//! RMSNorm over each head, then RoPE: queries and keys before an attention. A GPU runs each as one kernel.
use super::checks::{check_float, check_index, misfit, misfit_shapes, refuse, refuse_dtype};
use super::rope::check as check_rope;
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::{GainGradient, Norm, RopeArgs, UnrotatedHeads};
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
/// Those of the two operations; [`Error::Argument`](crate::Error::Argument) for a head size above 256 on a GPU.
pub fn norm_rope(x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<Tensor> {
    check("norm_rope", x, norm, rope)?;
    backend(x.device()).norm_rope(x, norm, rope)
}

/// Returns the gradient of [`norm_rope`] with respect to `x`, rounded to `out`, and adds the gradient with respect to
/// the gain to `gain.dw [hd]`. `dy [N, H, hd]` is f32.
///
/// `gain.samples` counts the `N` rows. Bit-identical to [`rope_backward`](super::rope_backward), then
/// [`rms_norm_backward`](super::rms_norm_backward) over `(row, head)` pairs, then [`Tensor::cast`].
///
/// # Errors
/// Those of the operations; [`Error::Argument`](crate::Error::Argument) for a head size above 256 on a GPU.
pub fn norm_rope_backward(
    x: &Tensor,
    norm: Norm<'_>,
    rope: RopeArgs<'_>,
    dy: &Tensor,
    gain: GainGradient<'_>,
    out: Dtype,
) -> Result<Tensor> {
    const OP: &str = "norm_rope_backward";
    check(OP, x, norm, rope)?;
    check_float(OP, out)?;
    refuse_dtype(dy.dtype() != Dtype::F32, OP, "dy in f32", dy.dtype())?;
    refuse(
        dy.shape() != x.shape() || gain.dw.shape() != norm.gain.shape(),
        OP,
        "dy as x, dw as the gain",
        &[x, dy, gain.dw],
    )?;
    gain.samples.check(OP, x.shape()[0])?;
    backend(x.device()).norm_rope_backward(x, norm, rope, dy, gain, out)
}

/// Normalizes and rotates queries and keys, and writes keys and values to their slots in the pools `[S, nkv, hd]`.
/// Returns the queries. Bit-identical to [`norm_rope`] (without QK-norm:
/// [`rope_rows`](super::rope_rows)) and [`scatter_rows`](super::scatter_rows).
///
/// # Errors
/// Those of these operations; [`Error::Argument`](crate::Error::Argument) for a head size above 256 on a GPU.
pub fn write_heads(new: &UnrotatedHeads<'_>, k_pool: &mut Tensor, v_pool: &mut Tensor) -> Result<Tensor> {
    const OP: &str = "write_heads";
    let UnrotatedHeads { q, k, v, norms, rope, slots } = *new;
    check_rope(OP, q, rope)?;
    check_rope(OP, k, rope)?;
    let pool = k_pool.shape();
    refuse(
        k.shape() != v.shape() || pool != v_pool.shape() || pool.get(1..) != k.shape().get(1..),
        OP,
        "k and v [N, nkv, hd], both pools [S, nkv, hd]",
        &[k, v, k_pool, v_pool],
    )?;
    let mut gains = norms.into_iter().flat_map(|n| [n.q_gain, n.k_gain]);
    if let Some(gain) = gains.find(|gain| gain.shape() != [rope.table.head_dim()]) {
        return Err(misfit(OP, "gains [hd]", &[gain, q]));
    }
    if slots.len() != rope.positions.len() {
        return Err(misfit_shapes(OP, "a slot for each row", &[&[slots.len()], &[rope.positions.len()]]));
    }
    check_index(OP, "slot", pool[0], slots)?;
    for x in [q, v, k_pool, v_pool] {
        refuse_dtype(x.dtype() != k.dtype(), OP, "one dtype", x.dtype())?;
    }
    backend(q.device()).write_heads(new, [k_pool, v_pool])
}

fn check(op: &'static str, x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<()> {
    check_rope(op, x, rope)?;
    refuse(norm.gain.shape() != [rope.table.head_dim()], op, "x [N, H, hd], a gain [hd]", &[x, norm.gain])
}
