//! Attention over a pool of keys and values: tiles of rows for training and prompts, chunks of keys for
//! single rows. The same bits either way.
use super::{At, Buffer, Gpu, Grid, args};
use crate::ops::{Saved, Slots, Visible};
use crate::reference::Heads;
use crate::{Dtype, Error, Result, Tensor};

/// The head sizes that the kernels have.
pub(crate) const HEAD_SIZES: &str = "a head size that is a multiple of 8, to 256, on a GPU";

/// Query vectors of a tile; positions of a tile of the backward.
const TILE: usize = 32;
/// Keys of a chunk.
const CHUNK: usize = 64;
/// Floats of a row of 64 in shared memory.
const LD: usize = 68;

/// Refuses a head size without a kernel.
pub(crate) fn check_head_size(op: &'static str, hd: usize) -> Result<()> {
    match hd.is_multiple_of(8) && (8..=256).contains(&hd) {
        true => Ok(()),
        false => Err(Error::Argument { op, want: HEAD_SIZES, got: hd.to_string() }),
    }
}

/// A [`Visible`] on the device.
struct Seen {
    seq: Buffer,
    pos: Buffer,
    table: Buffer,
    page: u32,
    stride: u32,
    /// 0: none that hides anything.
    window: u32,
}

impl Seen {
    fn upload(gpu: &Gpu, see: &Visible<'_>) -> Result<Seen> {
        let (table, page, stride) = match see.slots {
            Slots::Runs { base } => (base.iter().map(|&b| b as u32).collect(), 0, 0),
            Slots::Pages { page, table } => {
                let stride = table.iter().map(Vec::len).max().unwrap_or(0);
                let mut all = vec![0; stride * table.len()];
                all.chunks_exact_mut(stride.max(1))
                    .zip(table)
                    .for_each(|(to, t)| to[..t.len()].copy_from_slice(t));
                (all, *page as u32, stride as u32)
            }
        };
        let (seq, pos, table) = (gpu.upload(see.seq)?, gpu.upload(see.pos)?, gpu.upload::<u32>(&table)?);
        let longest = see.pos.iter().max().map_or(0, |&p| p as usize + 1);
        let window = see.window.filter(|&w| w < longest).map_or(0, |w| w as u32);
        Ok(Seen { seq, pos, table, page, stride, window })
    }
}

/// Tiles of neighbouring rows: (first row, pairs to skip, pairs), those with the most keys first. A pair
/// is a row and a head of one group.
fn tiles(see: &Visible<'_>, group: usize) -> Vec<[u32; 3]> {
    let follows = |n: usize| see.seq[n] == see.seq[n - 1] && see.pos[n] == see.pos[n - 1] + 1;
    let (mut tiles, mut first) = (Vec::new(), 0);
    for end in 1..=see.rows() {
        if end < see.rows() && follows(end) {
            continue;
        }
        let pairs = (end - first) * group;
        for skip in (0..pairs).step_by(TILE) {
            tiles.push([first as u32, skip as u32, TILE.min(pairs - skip) as u32]);
        }
        first = end;
    }
    let last = |&[row, skip, n]: &[u32; 3]| row as usize + (skip + n - 1) as usize / group;
    tiles.sort_by_key(|tile| std::cmp::Reverse(see.keys(last(tile)).len()));
    tiles
}

/// The most chunks that a row sees.
fn most_chunks(see: &Visible<'_>) -> usize {
    let chunks = |n| {
        let keys = see.keys(n);
        keys.end.div_ceil(CHUNK) - keys.start / CHUNK
    };
    (0..see.rows()).map(chunks).max().unwrap_or(0)
}

/// The kernel for heads of `hd`, of those for up to 64, 128, 192 and 256.
fn sized(names: [&'static str; 4], hd: usize) -> &'static str {
    names[(hd - 1) / 64]
}

/// `(y, L)`, operands checked.
pub(crate) fn attention(
    gpu: &Gpu,
    [q, k, v]: [&Tensor; 3],
    heads: Heads,
    see: &Visible<'_>,
) -> Result<(Tensor, Tensor)> {
    let (seen, tiles) = (Seen::upload(gpu, see)?, tiles(see, heads.nh / heads.nkv));
    let tiles_at = gpu.upload(tiles.as_flattened())?;
    let (y, lse) = results(gpu, q)?;
    let [q_at, k_at, v_at] = places(gpu, [q, k, v])?;
    let (y_at, lse_at) = (y.at(gpu, q.dtype())?, lse.at(gpu, Dtype::F32)?);
    let (nh, nkv, hd) = (heads.nh as u32, heads.nkv as u32, heads.hd as u32);
    let kernel = sized(
        ["attention_f32_hd64", "attention_f32_hd128", "attention_f32_hd192", "attention_f32_hd256"],
        heads.hd,
    );
    let args = args![
        q_at,
        k_at,
        v_at,
        y_at,
        lse_at,
        tiles_at.arg(),
        seen.seq.arg(),
        seen.pos.arg(),
        seen.table.arg(),
        seen.page,
        seen.stride,
        seen.window,
        nh,
        nkv,
        hd,
        heads.scale::<f32>()
    ];
    let shared = 4 * (TILE * (heads.hd + 4) + (CHUNK + TILE) * LD + CHUNK);
    let grid = Grid::blocks([tiles.len(), heads.nkv, 1], 128).shared(shared);
    // SAFETY: shapes and slots were checked by the operation; the tiles cover its rows.
    unsafe { gpu.launch(kernel, grid, args)? };
    Ok((y, lse))
}

/// `(y, L)` of rows whose keys are split over the device, operands checked.
pub(crate) fn decode_attention(
    gpu: &Gpu,
    [q, k, v]: [&Tensor; 3],
    heads: Heads,
    see: &Visible<'_>,
) -> Result<(Tensor, Tensor)> {
    let seen = Seen::upload(gpu, see)?;
    let (y, lse) = results(gpu, q)?;
    let (n, chunks) = (see.rows(), most_chunks(see));
    let rows: Vec<u32> = (0..n as u32).collect();
    let rows = gpu.upload(&rows)?;
    let parts = n * heads.nh * chunks;
    let (ml, o) = (gpu.buffer(parts * 8)?, gpu.buffer(parts * heads.hd * 4)?);
    let [q_at, k_at, v_at] = places(gpu, [q, k, v])?;
    let (y_at, lse_at) = (y.at(gpu, q.dtype())?, lse.at(gpu, Dtype::F32)?);
    let (nh, nkv, hd, chunks_) = (heads.nh as u32, heads.nkv as u32, heads.hd as u32, chunks as u32);
    let args = args![
        q_at,
        k_at,
        v_at,
        ml.arg(),
        o.arg(),
        rows.arg(),
        seen.seq.arg(),
        seen.pos.arg(),
        seen.table.arg(),
        seen.page,
        seen.stride,
        seen.window,
        chunks_,
        nh,
        nkv,
        hd,
        heads.scale::<f32>()
    ];
    let group = heads.nh / heads.nkv;
    let shared = 4 * (CHUNK * (heads.hd + 4) + group * (heads.hd + CHUNK) + CHUNK);
    let grid = Grid::blocks([n, heads.nkv, chunks], 128).shared(shared);
    // SAFETY: shapes and slots were checked by the operation; parts for every chunk of every row and head.
    unsafe { gpu.launch("decode_attention_f32", grid, args)? };
    let args = args![
        ml.arg(),
        o.arg(),
        y_at,
        lse_at,
        rows.arg(),
        seen.seq.arg(),
        seen.pos.arg(),
        seen.table.arg(),
        seen.page,
        seen.stride,
        seen.window,
        chunks_,
        nh,
        hd
    ];
    // SAFETY: the parts that were just written, of the same rows.
    unsafe { gpu.launch("decode_attention_merge_f32", Grid::blocks([n, heads.nh, 1], 64), args)? };
    Ok((y, lse))
}

/// `[dq, dk, dv]`, operands checked; `dy` in the dtype of `q`.
pub(crate) fn attention_backward(
    gpu: &Gpu,
    saved: &Saved<'_>,
    dy: &Tensor,
    heads: Heads,
    see: &Visible<'_>,
) -> Result<[Tensor; 3]> {
    let Saved { q, k, v, y, lse } = *saved;
    let (seen, tiles) = (Seen::upload(gpu, see)?, tiles(see, heads.nh / heads.nkv));
    let tiles_at = gpu.upload(tiles.as_flattened())?;
    let [q_at, k_at, v_at] = places(gpu, [q, k, v])?;
    let [y_at, dy_at] = [y.at(gpu, q.dtype())?, dy.at(gpu, q.dtype())?];
    let lse_at = lse.at(gpu, Dtype::F32)?;
    let (nh, nkv, hd) = (heads.nh as u32, heads.nkv as u32, heads.hd as u32);

    let delta = gpu.buffer(lse.len() * 4)?;
    let args = args![y_at, dy_at, delta.arg(), lse.len() as u32, hd];
    // SAFETY: y and dy [N, nh, hd], delta [N, nh].
    unsafe { gpu.launch("attention_delta_f32", Grid::over(lse.len() * 32, 256), args)? };

    let dq = Tensor::on_gpu(gpu, q.shape(), Dtype::F32)?;
    let args = args![
        q_at,
        k_at,
        v_at,
        dy_at,
        lse_at,
        delta.arg(),
        dq.at(gpu, Dtype::F32)?,
        tiles_at.arg(),
        seen.seq.arg(),
        seen.pos.arg(),
        seen.table.arg(),
        seen.page,
        seen.stride,
        seen.window,
        nh,
        nkv,
        hd,
        heads.scale::<f32>()
    ];
    let names = [
        "attention_dq_f32_hd64",
        "attention_dq_f32_hd128",
        "attention_dq_f32_hd192",
        "attention_dq_f32_hd256",
    ];
    let shared = 4 * (2 * TILE * (heads.hd + 4) + (CHUNK + TILE) * LD + CHUNK);
    let grid = Grid::blocks([tiles.len(), heads.nkv, 1], 128).shared(shared);
    // SAFETY: shapes and slots were checked by the operation; the tiles cover its rows.
    unsafe { gpu.launch(sized(names, heads.hd), grid, args)? };

    // slots without a row have no gradient
    let (dk, dv) = (zeros(gpu, k)?, zeros(gpu, v)?);
    let (order, tiles) = key_tiles(see);
    let (order, tiles_at) = (gpu.upload(&order)?, gpu.upload(tiles.as_flattened())?);
    let args = args![
        q_at,
        k_at,
        v_at,
        dy_at,
        lse_at,
        delta.arg(),
        dk.at(gpu, Dtype::F32)?,
        dv.at(gpu, Dtype::F32)?,
        tiles_at.arg(),
        order.arg(),
        seen.seq.arg(),
        seen.pos.arg(),
        seen.table.arg(),
        seen.page,
        seen.stride,
        seen.window,
        nh,
        nkv,
        hd,
        heads.scale::<f32>()
    ];
    let names = [
        "attention_dkv_f32_hd64",
        "attention_dkv_f32_hd128",
        "attention_dkv_f32_hd192",
        "attention_dkv_f32_hd256",
    ];
    let shared = 4 * (2 * TILE * (heads.hd + 4) + (CHUNK + 2 * TILE) * LD);
    let grid = Grid::blocks([tiles.len(), heads.nkv, 1], 128).shared(shared);
    // SAFETY: whole sequences from position 0, each position with a slot of its own, as the operation checked.
    unsafe { gpu.launch(sized(names, heads.hd), grid, args)? };
    Ok([dq, dk, dv])
}

/// The rows of each sequence by position, and tiles of its positions: (where its rows begin, their
/// number, first position), those with the most rows first.
fn key_tiles(see: &Visible<'_>) -> (Vec<u32>, Vec<[u32; 3]>) {
    let (mut order, mut tiles) = (Vec::with_capacity(see.rows()), Vec::new());
    for (_, rows) in see.rows_by_sequence() {
        let (first, len) = (order.len() as u32, rows.len() as u32);
        order.extend(rows.into_iter().map(|n| n as u32));
        tiles.extend((0..len).step_by(TILE).map(|at| [first, len, at]));
    }
    tiles.sort_by_key(|&[_, len, at]| std::cmp::Reverse(len - at));
    (order, tiles)
}

fn results(gpu: &Gpu, q: &Tensor) -> Result<(Tensor, Tensor)> {
    Ok((Tensor::on_gpu(gpu, q.shape(), q.dtype())?, Tensor::on_gpu(gpu, &q.shape()[..2], Dtype::F32)?))
}

fn places(gpu: &Gpu, [q, k, v]: [&Tensor; 3]) -> Result<[At; 3]> {
    Ok([q.at(gpu, q.dtype())?, k.at(gpu, q.dtype())?, v.at(gpu, q.dtype())?])
}

fn zeros(gpu: &Gpu, like: &Tensor) -> Result<Tensor> {
    Tensor::zeros(&crate::Device::Gpu(gpu.clone()), like.shape(), Dtype::F32)
}
