//! Attention over a KV pool: tiles of rows for training and prefill, split-K over chunks of keys for decode. Both
//! compute the same bits.
/// The variant of a kernel for head size `hd`: up to 64, 128, 192 or 256.
macro_rules! sized {
    ($kernel:literal, $hd:expr) => {
        match $hd {
            0..=64 => concat!($kernel, "_hd64"),
            65..=128 => concat!($kernel, "_hd128"),
            129..=192 => concat!($kernel, "_hd192"),
            _ => concat!($kernel, "_hd256"),
        }
    };
}

mod backward;
mod decode;
pub(super) mod shared_prefix;
#[cfg(test)]
pub(crate) mod tests;
mod tiles;
mod wgmma;

use std::ops::Range;

use tiles::CHUNK;

use super::deferred::heads::NewHeads;
use super::{Arg, At, Gpu, Grid, args};
use crate::faults::{self, Fault};
use crate::operands::{AttnMask, Heads, Slots};
use crate::{Dtype, Error, Result, Tensor};

/// Head sizes supported by the GPU kernels.
pub(crate) const HEAD_SIZES: &str = "a head size that is a multiple of 8, to 256, on a GPU";

/// Rows per f32 tile.
const TILE: usize = 32;
/// Row pitch, in floats, of 64 columns in shared memory.
const TILE_LD: usize = 68;

/// Checks that there is a kernel for this head size.
pub(crate) fn check_head_size(op: &'static str, hd: usize) -> Result<()> {
    match hd.is_multiple_of(8) && (8..=256).contains(&hd) {
        true => Ok(()),
        false => Err(Error::Argument { op, want: HEAD_SIZES, got: hd.to_string() }),
    }
}

/// An [`AttnMask`] on the device, with the head shape.
struct MaskArgs {
    seq: At,
    pos: At,
    table: At,
    page: usize,
    stride: usize,
    /// Sliding window. 0: no window, or one that hides nothing.
    window: usize,
    heads: Heads,
}

impl MaskArgs {
    fn upload(gpu: &Gpu, heads: Heads, mask: &AttnMask<'_>) -> Result<MaskArgs> {
        let (table, page, stride): (Vec<u32>, usize, usize) = match mask.slots {
            Slots::Runs { base } => (base.iter().map(|&b| b as u32).collect(), 0, 0),
            Slots::Pages { page, table } => {
                let stride = table.iter().map(Vec::len).max().unwrap_or(0);
                let mut all = vec![0; stride * table.len()];
                let rows = all.chunks_exact_mut(stride.max(1)).zip(table);
                rows.for_each(|(to, pages)| to[..pages.len()].copy_from_slice(pages));
                // a page with rows is a part of its pool; without rows it may have any length
                (all, (*page).min(u32::MAX as usize), stride)
            }
        };
        let (seq, pos, table) = (gpu.indices(mask.seq)?, gpu.indices(mask.pos)?, gpu.indices(&table)?);
        let longest = mask.pos.iter().max().map_or(0, |&p| p as usize + 1);
        let more = usize::from(faults::on(Fault::GpuWindowOfAllButOneIgnored));
        let window = mask.window.filter(|&w| w + more < longest);
        let window = window.map_or(0, |w| w + usize::from(faults::on(Fault::GpuWindowOffByOne)));
        Ok(MaskArgs { seq, pos, table, page, stride, window, heads })
    }

    /// The kernels' `MASK_PARAMS`.
    fn args(&self) -> [Arg; 6] {
        let &MaskArgs { seq, pos, table, page, stride, window, .. } = self;
        *args![seq, pos, table, page, stride, window]
    }

    /// The kernels' `HEAD_PARAMS`.
    fn head_args(&self) -> [Arg; 4] {
        let Heads { nh, nkv, hd } = self.heads;
        *args![nh, nkv, hd, self.heads.scale()]
    }
}

/// Row pitch, in bf16 values, in the shared memory of the tensor-core kernels.
fn mma_ld(hd: usize) -> usize {
    hd.next_multiple_of(16) + 8
}

/// `(y, L)`. Runs of rows are computed in tiles, short runs by split-K over their chunks. Rows that do not see each
/// other's new keys also write them, if `write_heads` has been deferred. The operands have been checked.
pub(crate) fn attention(
    gpu: &Gpu,
    operands: [&Tensor; 3],
    heads: Heads,
    mask: &AttnMask<'_>,
) -> Result<(Tensor, Tensor)> {
    if let Some(new) = NewHeads::of_attention(operands, mask) {
        let all: Vec<u32> = (0..mask.rows() as u32).collect();
        let operands = Operands::new(gpu, operands, heads, mask)?;
        operands.append(&all, mask, &new)?;
        return Ok((operands.y, operands.lse));
    }
    let (runs, single): (Vec<_>, Vec<_>) =
        tiles::runs(mask).into_iter().partition(|run: &Range<usize>| !tiles::split(run));
    let single = single.into_iter().flatten().map(|n| n as u32).collect::<Vec<_>>();
    let operands = Operands::new(gpu, operands, heads, mask)?;
    operands.tiles(&runs, mask)?;
    operands.split(&single, mask)?;
    Ok((operands.y, operands.lse))
}

/// [`attention`] of single rows.
pub(crate) fn decode_attention(
    gpu: &Gpu,
    operands: [&Tensor; 3],
    heads: Heads,
    mask: &AttnMask<'_>,
) -> Result<Tensor> {
    let operands = Operands::new(gpu, operands, heads, mask)?;
    operands.split(&(0..mask.rows() as u32).collect::<Vec<_>>(), mask)?;
    Ok(operands.y)
}

/// Operands and results of the forward pass.
struct Operands<'a> {
    gpu: &'a Gpu,
    mask_args: MaskArgs,
    qkv: [&'a Tensor; 3],
    y: Tensor,
    lse: Tensor,
}

impl<'a> Operands<'a> {
    fn new(gpu: &'a Gpu, qkv: [&'a Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<Operands<'a>> {
        let y = Tensor::on_gpu(gpu, qkv[0].shape(), qkv[0].dtype())?;
        let lse = Tensor::on_gpu(gpu, &qkv[0].shape()[..2], Dtype::F32)?;
        Ok(Operands { gpu, mask_args: MaskArgs::upload(gpu, heads, mask)?, qkv, y, lse })
    }

    /// Device addresses of q, k, v, y and L.
    fn addresses(&self) -> Result<[At; 5]> {
        let at = |x: &Tensor| x.at(self.gpu, self.y.dtype());
        let [q, k, v] = self.qkv;
        Ok([at(q)?, at(k)?, at(v)?, at(&self.y)?, self.lse.at(self.gpu, Dtype::F32)?])
    }

    /// Computes `y` and `L` for the rows of these runs, in tiles.
    fn tiles(&self, runs: &[Range<usize>], mask: &AttnMask<'_>) -> Result<()> {
        let Heads { nh, nkv, hd } = self.mask_args.heads;
        let (kernel, warps, rows, shared) = match self.y.dtype() {
            Dtype::BF16 if wgmma::uses(self.gpu, hd) => {
                (wgmma::sized!("attention_bf16_wgmma", hd), 4, wgmma::ROWS, wgmma::shared(hd, 5))
            }
            Dtype::BF16 => {
                let (warps, queries) = if hd > 192 { (2, 32) } else { (4, 0) };
                let shared = 2 * mma_ld(hd) * (2 * CHUNK + queries) + 4 * 2 * CHUNK;
                (sized!("attention_bf16", hd), warps, 16 * warps, shared)
            }
            _ => {
                let shared = 4 * (TILE * (hd + 4) + (CHUNK + TILE) * TILE_LD + CHUNK);
                (sized!("attention_f32", hd), 4, TILE, shared)
            }
        };
        let tiles = tiles::of_rows(mask, runs, nh / nkv, rows);
        let [q, k, v, y, lse] = self.addresses()?;
        let own = args![q, k, v, y, lse, self.gpu.indices(tiles.as_flattened())?];
        let args = [own as &[Arg], &self.mask_args.args(), &self.mask_args.head_args()].concat();
        let grid = Grid::blocks([tiles.len(), nkv, 1], 32 * warps as u32).shared(shared);
        // SAFETY: shapes and slots were checked by the operation; the tiles are of its rows.
        unsafe { self.gpu.launch(kernel, grid, &args) }
    }
}
