//! Single rows: a block for each chunk of their keys, then a merge in rising order.
use super::{CHUNK, Scene, mma_ld, places, results, tiles};
use crate::gpu::{Arg, Gpu, Grid, args};
use crate::ops::Visible;
use crate::reference::Heads;
use crate::{Dtype, Result, Tensor};

/// `(y, L)`, operands checked.
pub(crate) fn decode_attention(
    gpu: &Gpu,
    [q, k, v]: [&Tensor; 3],
    heads: Heads,
    see: &Visible<'_>,
) -> Result<(Tensor, Tensor)> {
    let (scene, hd, group) = (Scene::upload(gpu, heads, see)?, heads.hd, heads.nh / heads.nkv);
    let (y, lse) = results(gpu, q)?;
    let (n, chunks) = (see.rows(), tiles::most_chunks(see));
    let parts = n * heads.nh * chunks;
    let (ml, o) = (gpu.buffer(parts * 8)?, gpu.buffer(parts * hd * 4)?);
    let [q_at, k_at, v_at] = places(gpu, [q, k, v])?;

    let (split, merge, shared) = match q.dtype() {
        Dtype::BF16 => {
            let operands = mma_ld(hd) * (2 * CHUNK + 16) + 16 * (CHUNK + 8);
            let shared = 2 * operands + 4 * (16 * super::TILE_LD + CHUNK);
            ("decode_attention_bf16", "decode_attention_merge_bf16", shared)
        }
        _ => {
            let shared = 4 * (CHUNK * (hd + 4) + group * (hd + CHUNK) + CHUNK);
            ("decode_attention_f32", "decode_attention_merge_f32", shared)
        }
    };
    let own = args![q_at, k_at, v_at, ml.arg(), o.arg()];
    let args = [own as &[Arg], &scene.seen(), args![chunks as u32], &scene.heads()].concat();
    let grid = Grid::blocks([n, heads.nkv, chunks], 128).shared(shared);
    // SAFETY: shapes and slots were checked by the operation; parts for every chunk of every row and head.
    unsafe { gpu.launch(split, grid, &args)? };

    let own = args![ml.arg(), o.arg(), y.at(gpu, q.dtype())?, lse.at(gpu, Dtype::F32)?];
    let sizes = args![chunks as u32, heads.nh as u32, hd as u32];
    let args = [own as &[Arg], &scene.seen(), sizes].concat();
    // SAFETY: the parts that were just written, of the same rows.
    unsafe { gpu.launch(merge, Grid::blocks([n, heads.nh, 1], 64), &args)? };
    Ok((y, lse))
}
