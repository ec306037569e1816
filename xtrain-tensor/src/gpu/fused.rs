//! Fused kernels of the forward pass.
use super::{At, Gpu, Grid, args};
use crate::operands::{RopeArgs, UnrotatedHeads};
use crate::{Dtype, Error, Result, Tensor};

/// Rows (or heads) per block, one warp each.
const WARPS: usize = 4;

/// QK-norm, RoPE and KV-cache append of new rows; returns the rotated queries. The operands have been checked.
pub(crate) fn write_heads(
    gpu: &Gpu,
    new: &UnrotatedHeads<'_>,
    [k_pool, v_pool]: [&mut Tensor; 2],
) -> Result<Tensor> {
    let UnrotatedHeads { q, k, v, norms, rope: RopeArgs { table, positions: pos }, slots } = *new;
    let &[n, nh, hd] = q.shape() else { unreachable!("write_heads checks its shapes") };
    let (dtype, nkv) = (q.dtype(), k.shape()[1]);
    let kernel = match dtype {
        Dtype::BF16 => "write_heads_bf16",
        Dtype::F32 => "write_heads_f32",
        got => return Err(Error::Dtype { op: "write_heads", want: "f32 or bf16", got }),
    };
    if hd > 256 {
        let got = hd.to_string();
        return Err(Error::Argument { op: "write_heads", want: "a head size of at most 256 on a GPU", got });
    }
    let rotated = Tensor::on_gpu(gpu, q.shape(), dtype)?;
    let ([q_gain, k_gain], eps) = match norms {
        Some(n) => ([n.q_gain.at(gpu, Dtype::F32)?, n.k_gain.at(gpu, Dtype::F32)?], n.eps),
        None => ([At(0); 2], 0.0),
    };
    let table = table.device_addresses(gpu, pos.iter().map(|&p| p as usize))?;
    let (pos, slots) = (gpu.indices(pos)?, gpu.indices(slots)?);
    let [q, k, v, y] = [q.at(gpu, dtype)?, k.at(gpu, dtype)?, v.at(gpu, dtype)?, rotated.at(gpu, dtype)?];
    let [k_pool, v_pool] = [k_pool.at_mut(gpu, dtype)?, v_pool.at_mut(gpu, dtype)?];
    let args = args![q, k, v, y, k_pool, v_pool, q_gain, k_gain, table, pos, slots, n, nh, nkv, hd, eps];
    let grid = Grid::blocks([(n * (nh + 2 * nkv)).div_ceil(WARPS), 1, 1], 32 * WARPS as u32);
    // SAFETY: q and rotated are [n, nh, hd], k and v [n, nkv, hd], pools have rows of the same shape, gains are [hd]
    // or null, the table covers the positions, slots are inside the pools; one warp per head.
    unsafe { gpu.launch(kernel, grid, args)? };
    Ok(rotated)
}
