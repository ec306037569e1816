//! Fused kernels of the forward pass.
use super::{At, Gpu, Grid, args};
use crate::operands::{RopeArgs, UnrotatedHeads};
use crate::{Dtype, Error, Result, Tensor};

/// Rows (or heads) per block, one warp each.
const WARPS: usize = 4;

/// Checks that a kernel can write these heads.
pub(super) fn check_heads(gpu: &Gpu, new: &UnrotatedHeads<'_>) -> Result<()> {
    let UnrotatedHeads { q, k, v, norms, .. } = *new;
    [q, k, v].into_iter().try_for_each(|x| x.check_at(gpu, q.dtype()))?;
    let gains = norms.into_iter().flat_map(|norms| [norms.q_gain, norms.k_gain]);
    gains.into_iter().try_for_each(|gain| gain.check_at(gpu, Dtype::F32))?;
    kernel_of_heads(q).map(|_| ())
}

/// The kernel of `write_heads` for these queries.
fn kernel_of_heads(q: &Tensor) -> Result<&'static str> {
    let (op, hd) = ("write_heads", q.width());
    if hd > 256 {
        return Err(Error::Argument { op, want: "a head size of at most 256 on a GPU", got: hd.to_string() });
    }
    match q.dtype() {
        Dtype::BF16 => Ok("write_heads_bf16"),
        Dtype::F32 => Ok("write_heads_f32"),
        got => Err(Error::Dtype { op, want: "f32 or bf16", got }),
    }
}

/// QK-norm, RoPE and KV-cache append of new rows, into the rotated queries and the pools at these addresses; what has the
/// address null is not written. The operands have been checked.
pub(super) fn write_heads_into(
    gpu: &Gpu,
    new: &UnrotatedHeads<'_>,
    [rotated, k_pool, v_pool]: [At; 3],
) -> Result<()> {
    let UnrotatedHeads { q, k, v, norms, rope: RopeArgs { table, positions: pos }, slots } = *new;
    let &[n, nh, hd] = q.shape() else { unreachable!("write_heads checks its shapes") };
    let (kernel, dtype, nkv) = (kernel_of_heads(q)?, q.dtype(), k.shape()[1]);
    let ([q_gain, k_gain], eps) = match norms {
        Some(n) => ([n.q_gain.at(gpu, Dtype::F32)?, n.k_gain.at(gpu, Dtype::F32)?], n.eps),
        None => ([At(0); 2], 0.0),
    };
    let table = table.device_addresses(gpu, pos.iter().map(|&p| p as usize))?;
    let (pos, slots) = (gpu.indices(pos)?, gpu.indices(slots)?);
    let [q, k, v] = [q.at(gpu, dtype)?, k.at(gpu, dtype)?, v.at(gpu, dtype)?];
    let args =
        args![q, k, v, rotated, k_pool, v_pool, q_gain, k_gain, table, pos, slots, n, nh, nkv, hd, eps];
    let grid = Grid::blocks([(n * (nh + 2 * nkv)).div_ceil(WARPS), 1, 1], 32 * WARPS as u32);
    // SAFETY: q and rotated are [n, nh, hd], k and v [n, nkv, hd], pools have rows of the same shape, gains are [hd];
    // results and gains may be null; the table covers the positions, slots are inside the pools; one warp per head.
    unsafe { gpu.launch(kernel, grid, args) }
}
