//! Steps of a forward pass in one launch.
use super::{At, Gpu, Grid, args};
use crate::ops::UnrotatedHeads;
use crate::{Dtype, Error, Result, Tensor};

/// Rows, or heads, that a block takes, a warp each.
const WARPS: usize = 4;

/// `h = h + y`, then its norm in `out`; shapes have been checked.
pub(crate) fn add_rms_norm(
    gpu: &Gpu,
    (h, y): (&mut Tensor, &Tensor),
    w: &Tensor,
    eps: f32,
    out: Dtype,
) -> Result<Tensor> {
    let kernel = if out == Dtype::BF16 { "add_rms_norm_bf16" } else { "add_rms_norm_f32" };
    let out = if out == Dtype::BF16 { Dtype::BF16 } else { Dtype::F32 };
    let (c, n) = (h.width(), Tensor::on_gpu(gpu, h.shape(), out)?);
    let rows = h.len() / c;
    let (y, w) = (y.at(gpu, Dtype::F32)?, w.at(gpu, Dtype::F32)?);
    let args = args![h.at_mut(gpu, Dtype::F32)?, y, w, n.at(gpu, out)?, rows as u32, c as u32, eps];
    // SAFETY: h, y and n are [rows, c], w is [c]; a warp for each row.
    unsafe { gpu.launch(kernel, Grid::blocks([rows.div_ceil(WARPS), 1, 1], 32 * WARPS as u32), args)? };
    Ok(n)
}

/// Norms, turns and writes heads; shapes, positions and slots have been checked.
pub(crate) fn write_heads(
    gpu: &Gpu,
    new: &UnrotatedHeads<'_>,
    [k_pool, v_pool]: [&mut Tensor; 2],
) -> Result<Tensor> {
    let UnrotatedHeads { q, k, v, norms, table, pos, slots } = *new;
    let &[n, nh, hd] = q.shape() else { unreachable!("write_heads checks its shapes") };
    let (dtype, nkv) = (q.dtype(), k.shape()[1]);
    let kernel = match dtype {
        Dtype::BF16 => "write_heads_bf16",
        Dtype::F32 => "write_heads_f32",
        got => return Err(Error::Dtype { op: "write_heads", want: "f32 or bf16", got }),
    };
    if hd > 256 {
        let got = hd.to_string();
        return Err(Error::Argument { op: "write_heads", want: "a head size to 256, on a GPU", got });
    }
    let turned = Tensor::on_gpu(gpu, q.shape(), dtype)?;
    let (gains, eps) = match norms {
        Some((ws, eps)) => ([ws[0].at(gpu, Dtype::F32)?, ws[1].at(gpu, Dtype::F32)?], eps),
        None => ([At(0); 2], 0.0),
    };
    let table = table.device_addresses(gpu, pos.iter().map(|&p| p as usize))?;
    let (pos, slots) = (gpu.indices(pos)?, gpu.indices(slots)?);
    let [q, k, v] = [q.at(gpu, dtype)?, k.at(gpu, dtype)?, v.at(gpu, dtype)?];
    let pools = [k_pool.at_mut(gpu, dtype)?, v_pool.at_mut(gpu, dtype)?];
    let shape = [n, nh, nkv, hd].map(|x| x as u32);
    let args = args![
        q,
        k,
        v,
        turned.at(gpu, dtype)?,
        pools[0],
        pools[1],
        gains[0],
        gains[1],
        table,
        pos,
        slots,
        shape[0],
        shape[1],
        shape[2],
        shape[3],
        eps
    ];
    let grid = Grid::blocks([(n * (nh + 2 * nkv)).div_ceil(WARPS), 1, 1], 32 * WARPS as u32);
    // SAFETY: q and turned [n, nh, hd], k and v [n, nkv, hd], pools of rows like theirs, gains [hd] or
    // none, a table that has the rows of the positions, slots of the pools; a warp for each head.
    unsafe { gpu.launch(kernel, grid, args)? };
    Ok(turned)
}
