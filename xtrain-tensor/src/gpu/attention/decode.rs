//! Single rows: a block for each chunk of their keys, then a merge in rising order.
use super::{CHUNK, Operands, TILE_LD, mma_ld, tiles};
use crate::gpu::{Arg, args};
use crate::ops::Visible;
use crate::{Dtype, Result};

impl Operands<'_> {
    /// `y` and `L` of these rows.
    pub(super) fn split(&self, rows: &[u32], see: &Visible<'_>) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let (gpu, heads) = (self.gpu, self.scene.heads);
        let (hd, group, chunks) = (heads.hd, heads.nh / heads.nkv, tiles::most_chunks(see, rows));
        let parts = rows.len() * heads.nh * chunks;
        let (ml, o) = (gpu.buffer(parts * 8)?, gpu.buffer(parts * hd * 4)?);
        let rows_at = gpu.indices(rows)?;

        let (split, merge, shared) = match self.q.dtype() {
            Dtype::BF16 => {
                let operands = mma_ld(hd) * (2 * CHUNK + 16) + 16 * (CHUNK + 8);
                let shared = 2 * operands + 4 * (16 * TILE_LD + CHUNK);
                ("decode_attention_bf16", "decode_attention_merge_bf16", shared)
            }
            _ => {
                let shared = 4 * (CHUNK * (hd + 4) + group * (hd + CHUNK) + CHUNK);
                ("decode_attention_f32", "decode_attention_merge_f32", shared)
            }
        };
        let [q, k, v, y, lse] = self.places()?;
        let own = args![q, k, v, ml.arg(), o.arg(), rows_at];
        let args = [own as &[Arg], &self.scene.seen(), args![chunks as u32], &self.scene.heads()].concat();
        let grid = super::Grid::blocks([rows.len(), heads.nkv, chunks], 128).shared(shared);
        // SAFETY: shapes and slots were checked by the operation; parts for every chunk of every row and
        // head.
        unsafe { gpu.launch(split, grid, &args)? };

        let own = args![ml.arg(), o.arg(), y, lse, rows_at];
        let sizes = args![chunks as u32, heads.nh as u32, hd as u32];
        let args = [own as &[Arg], &self.scene.seen(), sizes].concat();
        let grid = super::Grid::blocks([rows.len(), heads.nh, 1], 64);
        // SAFETY: the parts that were just written, of the same rows.
        unsafe { gpu.launch(merge, grid, &args) }
    }
}
