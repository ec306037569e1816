//! The gradient of attention in two passes: over rows for `dq`, over keys for `dk` and `dv`.
use super::tiles::{self, CHUNK};
use super::{MaskArgs, TILE, TILE_LD, mma_ld, wgmma};
use crate::gpu::{Arg, Gpu, Grid, args};
use crate::operands::{AttnMask, AttnSaved, Heads};
use crate::{Device, Dtype, Result, Tensor};

/// Kernels and launch geometry of one dtype and head size.
struct Shape {
    delta: &'static str,
    dq: &'static str,
    dkv: &'static str,
    /// Rows (or keys) per tile.
    tile: usize,
    threads: u32,
    dq_shared: usize,
    dkv_shared: usize,
    /// Number of blocks that split the columns of `dk` and `dv`.
    parts: usize,
}

impl Shape {
    fn f32(hd: usize) -> Shape {
        let rows = 2 * TILE * (hd + 4);
        Shape {
            delta: "attention_delta_f32",
            dq: sized!("attention_dq_f32", hd),
            dkv: sized!("attention_dkv_f32", hd),
            tile: TILE,
            threads: 128,
            dq_shared: 4 * (rows + (CHUNK + TILE) * TILE_LD + CHUNK),
            dkv_shared: 4 * (rows + (CHUNK + 2 * TILE) * TILE_LD),
            parts: 1,
        }
    }

    fn wgmma(hd: usize) -> Shape {
        let shared = wgmma::shared(hd, 6);
        Shape {
            delta: "attention_delta_bf16",
            dq: wgmma::sized!("attention_dq_bf16_wgmma", hd),
            dkv: wgmma::sized!("attention_dkv_bf16_wgmma", hd),
            tile: wgmma::ROWS,
            threads: 128,
            dq_shared: shared,
            dkv_shared: shared,
            parts: 1,
        }
    }

    fn bf16(hd: usize) -> Shape {
        let (warps, columns, stages, parts) = match hd {
            0..=64 => (4, 64, 2, 1),
            65..=128 => (4, 32, 2, 1),
            _ => (2, 32, 1, 2),
        };
        let rows = 2 * mma_ld(hd) * (2 * 16 * warps + 2 * columns * stages);
        Shape {
            delta: "attention_delta_bf16",
            dq: sized!("attention_dq_bf16", hd),
            dkv: sized!("attention_dkv_bf16", hd),
            tile: 16 * warps,
            threads: 32 * warps as u32,
            dq_shared: rows,
            dkv_shared: rows + 8 * columns * stages,
            parts,
        }
    }
}

/// `[dq, dk, dv]` of whole sequences. `dy` has the dtype of `q`. The operands have been checked.
pub(in crate::gpu) fn attention_backward(
    gpu: &Gpu,
    saved: &AttnSaved<'_>,
    dy: &Tensor,
    heads: Heads,
    mask: &AttnMask<'_>,
) -> Result<[Tensor; 3]> {
    let AttnSaved { q, k, v, y, lse } = *saved;
    let shape = match q.dtype() {
        Dtype::BF16 if wgmma::uses(gpu, heads.hd) => Shape::wgmma(heads.hd),
        Dtype::BF16 => Shape::bf16(heads.hd),
        _ => Shape::f32(heads.hd),
    };
    let mask_args = MaskArgs::upload(gpu, heads, mask)?;
    let at = |x: &Tensor| x.at(gpu, q.dtype());
    let [q_at, k_at, v_at, y_at, dy_at] = [at(q)?, at(k)?, at(v)?, at(y)?, at(dy)?];
    let (lse_at, delta) = (lse.at(gpu, Dtype::F32)?, gpu.buffer(lse.len() * 4)?);

    let args = args![y_at, dy_at, delta.arg(), lse.len(), heads.hd];
    // SAFETY: y and dy [N, nh, hd], delta [N, nh].
    unsafe { gpu.launch(shape.delta, Grid::over(lse.len() * 32, 256), args)? };

    let dq = Tensor::on_gpu(gpu, q.shape(), Dtype::F32)?;
    let tiles = tiles::of_rows(mask, &tiles::runs(mask), heads.nh / heads.nkv, shape.tile);
    let tiles_at = gpu.indices(tiles.as_flattened())?;
    let read = args![q_at, k_at, v_at, dy_at, lse_at, delta.arg()];
    let own = args![dq.at(gpu, Dtype::F32)?, tiles_at];
    let args = [read as &[Arg], own, &mask_args.args(), &mask_args.head_args()].concat();
    let grid = Grid::blocks([tiles.len(), heads.nkv, 1], shape.threads).shared(shape.dq_shared);
    // SAFETY: shapes and slots were checked by the operation; the tiles cover its rows.
    unsafe { gpu.launch(shape.dq, grid, &args)? };

    // each row writes its own slot; slots without a row get a zero gradient
    let device = Device::Gpu(gpu.clone());
    let gradient = || match k.shape()[0] == mask.rows() {
        true => Tensor::on_gpu(gpu, k.shape(), Dtype::F32),
        false => Tensor::zeros(&device, k.shape(), Dtype::F32),
    };
    let (dk, dv) = (gradient()?, gradient()?);
    let (order, tiles) = tiles::of_keys(mask, shape.tile);
    let (order, tiles_at) = (gpu.indices(&order)?, gpu.indices(tiles.as_flattened())?);
    let own = args![dk.at(gpu, Dtype::F32)?, dv.at(gpu, Dtype::F32)?, tiles_at, order];
    let args = [read as &[Arg], own, &mask_args.args(), &mask_args.head_args()].concat();
    let grid = Grid::blocks([tiles.len(), heads.nkv, shape.parts], shape.threads).shared(shape.dkv_shared);
    // SAFETY: whole sequences from position 0, each position with its own slot, as the operation checked.
    unsafe { gpu.launch(shape.dkv, grid, &args)? };
    Ok([dq, dk, dv])
}
