//! Single rows: a block for each chunk of their keys; the last one of a row merges them in rising order.
use super::tiles::{self, CHUNK};
use super::{Operands, TILE_LD, mma_ld};
use crate::gpu::{Arg, Grid, args};
use crate::operands::{AttnMask, Heads};
use crate::{Dtype, Result};

impl Operands<'_> {
    /// `y` and `L` of these rows.
    pub(super) fn split(&self, rows: &[u32], see: &AttnMask<'_>) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let (gpu, heads) = (self.gpu, self.scene.heads);
        self.count(rows, see);
        let (hd, group, chunks) = (heads.hd, heads.nh / heads.nkv, tiles::most_chunks(see, rows));
        let parts = rows.len() * heads.nh * chunks;
        let (ml, o) = (gpu.buffer(parts * 8)?, gpu.buffer(parts * hd * 4)?);
        let met = gpu.counters(rows.len() * heads.nkv)?;
        let (kernel, shared) = match self.q.dtype() {
            Dtype::BF16 => {
                let operands = mma_ld(hd) * (2 * CHUNK + 16) + 16 * (CHUNK + 8);
                ("decode_attention_bf16", 2 * operands + 4 * (16 * TILE_LD + CHUNK))
            }
            _ => ("decode_attention_f32", 4 * (CHUNK * (hd + 4) + group * (hd + CHUNK) + CHUNK)),
        };
        let [q, k, v, y, lse] = self.places()?;
        let own = args![q, k, v, ml.arg(), o.arg(), y, lse, met, gpu.indices(rows)?];
        let args = [own as &[Arg], &self.scene.seen(), args![chunks as u32], &self.scene.heads()].concat();
        let grid = Grid::blocks([rows.len(), heads.nkv, chunks], 128).shared(shared);
        // SAFETY: shapes and slots were checked by the operation; parts for every chunk of every row and
        // head, a counter for every row and kv head.
        unsafe { gpu.launch(kernel, grid, &args) }
    }

    /// Counts the bytes that these rows read and the parts that their chunks leave.
    fn count(&self, rows: &[u32], see: &AttnMask<'_>) {
        let Heads { nh, nkv, hd } = self.scene.heads;
        let keys: usize = rows.iter().map(|&n| see.keys(n as usize).len()).sum();
        let chunks: usize = rows.iter().map(|&n| tiles::chunks(see, n as usize)).sum();
        // keys once for a group of query heads; values too, but in f32 once for 16 of them
        let times = if self.q.dtype() == Dtype::BF16 { 2 } else { 1 + (nh / nkv).div_ceil(16) };
        let read = times * keys * nkv * hd * self.q.dtype().bytes();
        // (m, l) and o of each head, written and read
        let parts = 2 * chunks * nh * (2 + hd) * 4;
        self.gpu.count_attention_bytes(read, parts);
    }
}
