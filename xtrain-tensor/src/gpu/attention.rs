//! Attention over a pool of keys and values: tiles of rows for training and prompts, chunks of keys for
//! single rows. The same bits either way.
pub(super) mod backward;
mod decode;
#[cfg(test)]
#[cfg(all(feature = "emu", xtrain_emu))]
mod reads;
#[cfg(test)]
#[cfg(all(feature = "emu", xtrain_emu))]
mod tests;
mod tiles;

use std::ops::Range;

use tiles::CHUNK;

use super::{Arg, At, Gpu, Grid, args};
use crate::operands::{AttnMask, Heads, Slots};
use crate::{Dtype, Error, Result, Tensor};

/// The head sizes that the kernels have.
pub(crate) const HEAD_SIZES: &str = "a head size that is a multiple of 8, to 256, on a GPU";

/// Rows of a tile in f32.
const TILE: usize = 32;
/// Floats of a row of 64 in shared memory.
const TILE_LD: usize = 68;

/// Refuses a head size without a kernel.
pub(crate) fn check_head_size(op: &'static str, hd: usize) -> Result<()> {
    match hd.is_multiple_of(8) && (8..=256).contains(&hd) {
        true => Ok(()),
        false => Err(Error::Argument { op, want: HEAD_SIZES, got: hd.to_string() }),
    }
}

/// A [`AttnMask`] on the device, and the heads that see it.
struct Scene {
    seq: At,
    pos: At,
    table: At,
    page: u32,
    stride: u32,
    /// 0: none that hides anything.
    window: u32,
    heads: Heads,
}

impl Scene {
    fn upload(gpu: &Gpu, heads: Heads, see: &AttnMask<'_>) -> Result<Scene> {
        let (table, page, stride): (Vec<u32>, u32, u32) = match see.slots {
            Slots::Runs { base } => (base.iter().map(|&b| b as u32).collect(), 0, 0),
            Slots::Pages { page, table } => {
                let stride = table.iter().map(Vec::len).max().unwrap_or(0);
                let mut all = vec![0; stride * table.len()];
                let rows = all.chunks_exact_mut(stride.max(1)).zip(table);
                rows.for_each(|(to, pages)| to[..pages.len()].copy_from_slice(pages));
                (all, *page as u32, stride as u32)
            }
        };
        let (seq, pos, table) = (gpu.indices(see.seq)?, gpu.indices(see.pos)?, gpu.indices(&table)?);
        let longest = see.pos.iter().max().map_or(0, |&p| p as usize + 1);
        let window = see.window.filter(|&w| w < longest).map_or(0, |w| w as u32);
        Ok(Scene { seq, pos, table, page, stride, window, heads })
    }

    /// The kernels' `SEEN`.
    fn seen(&self) -> [Arg; 6] {
        let &Scene { seq, pos, table, page, stride, window, .. } = self;
        [seq.into(), pos.into(), table.into(), page.into(), stride.into(), window.into()]
    }

    /// The kernels' `HEADS`.
    fn heads(&self) -> [Arg; 4] {
        let Heads { nh, nkv, hd } = self.heads;
        [(nh as u32).into(), (nkv as u32).into(), (hd as u32).into(), self.heads.scale().into()]
    }
}

/// The kernel for heads of `hd`, of those for up to 64, 128, 192 and 256.
fn sized(names: [&'static str; 4], hd: usize) -> &'static str {
    names[(hd - 1) / 64]
}

/// bf16 values of a row in the shared memory of the kernels for tensor cores.
fn mma_ld(hd: usize) -> usize {
    hd.next_multiple_of(16) + 8
}

/// `(y, L)`, operands checked: runs of rows in tiles, single rows split over their chunks.
pub(crate) fn attention(
    gpu: &Gpu,
    operands: [&Tensor; 3],
    heads: Heads,
    see: &AttnMask<'_>,
) -> Result<(Tensor, Tensor)> {
    let (runs, single): (Vec<_>, Vec<_>) =
        tiles::runs(see).into_iter().partition(|run: &Range<usize>| !tiles::split(run));
    let single = single.into_iter().flatten().map(|n| n as u32).collect::<Vec<_>>();
    let operands = Operands::new(gpu, operands, heads, see)?;
    operands.tiles(&runs, see)?;
    operands.split(&single, see)?;
    Ok((operands.y, operands.lse))
}

/// [`attention`] of single rows.
pub(crate) fn decode_attention(
    gpu: &Gpu,
    operands: [&Tensor; 3],
    heads: Heads,
    see: &AttnMask<'_>,
) -> Result<(Tensor, Tensor)> {
    let operands = Operands::new(gpu, operands, heads, see)?;
    operands.split(&(0..see.rows() as u32).collect::<Vec<_>>(), see)?;
    Ok((operands.y, operands.lse))
}

/// What a forward reads and writes.
struct Operands<'a> {
    gpu: &'a Gpu,
    scene: Scene,
    q: &'a Tensor,
    k: &'a Tensor,
    v: &'a Tensor,
    y: Tensor,
    lse: Tensor,
}

impl<'a> Operands<'a> {
    fn new(
        gpu: &'a Gpu,
        [q, k, v]: [&'a Tensor; 3],
        heads: Heads,
        see: &AttnMask<'_>,
    ) -> Result<Operands<'a>> {
        let y = Tensor::on_gpu(gpu, q.shape(), q.dtype())?;
        let lse = Tensor::on_gpu(gpu, &q.shape()[..2], Dtype::F32)?;
        Ok(Operands { gpu, scene: Scene::upload(gpu, heads, see)?, q, k, v, y, lse })
    }

    /// Where q, k, v, y and L lie.
    fn places(&self) -> Result<[At; 5]> {
        let at = |x: &Tensor| x.at(self.gpu, self.q.dtype());
        Ok([at(self.q)?, at(self.k)?, at(self.v)?, at(&self.y)?, self.lse.at(self.gpu, Dtype::F32)?])
    }

    /// `y` and `L` of the rows of these runs.
    fn tiles(&self, runs: &[Range<usize>], see: &AttnMask<'_>) -> Result<()> {
        let Heads { nh, nkv, hd } = self.scene.heads;
        let (names, warps, rows, shared) = match self.q.dtype() {
            Dtype::BF16 => {
                let names = [
                    "attention_bf16_hd64",
                    "attention_bf16_hd128",
                    "attention_bf16_hd192",
                    "attention_bf16_hd256",
                ];
                let (warps, queries) = if hd > 192 { (2, 32) } else { (4, 0) };
                (names, warps, 16 * warps, 2 * mma_ld(hd) * (2 * CHUNK + queries) + 4 * 2 * CHUNK)
            }
            _ => {
                let names = [
                    "attention_f32_hd64",
                    "attention_f32_hd128",
                    "attention_f32_hd192",
                    "attention_f32_hd256",
                ];
                (names, 4, TILE, 4 * (TILE * (hd + 4) + (CHUNK + TILE) * TILE_LD + CHUNK))
            }
        };
        let tiles = tiles::of_rows(see, runs, nh / nkv, rows);
        let [q, k, v, y, lse] = self.places()?;
        let own = args![q, k, v, y, lse, self.gpu.indices(tiles.as_flattened())?];
        let args = [own as &[Arg], &self.scene.seen(), &self.scene.heads()].concat();
        let grid = Grid::blocks([tiles.len(), nkv, 1], 32 * warps as u32).shared(shared);
        // SAFETY: shapes and slots were checked by the operation; the tiles are of its rows.
        unsafe { self.gpu.launch(sized(names, hd), grid, &args) }
    }
}
