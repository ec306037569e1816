//! Decode attention: one block per chunk of a row's keys; the last block of a row merges the chunks in ascending
//! order. In bf16, one block computes a chunk for several rows that share its keys, such as a prompt's. The kernels
//! `append_attention` also norm, rotate and write the heads of the rows.
use super::tiles::{self, CHUNK};
use super::{Operands, TILE_LD, mma_ld};
use crate::faults::{self, Fault};
use crate::gpu::deferred::heads::NewHeads;
use crate::gpu::{Arg, At, Grid, args};
use crate::operands::{AttnMask, Heads};
use crate::{Dtype, Result};

/// Query vectors for which a block computes a shared chunk: two operands of 16 rows. With more, fewer blocks would
/// read the same chunk again, but each would take longer.
const SHARED_QUERIES: usize = 32;

/// The kernel of an operation on these operands: in bf16, head sizes of many models have variants in which the size is a
/// constant.
macro_rules! kernel_of_head_size {
    ($op:literal, $operands:expr) => {{
        let hd = $operands.mask_args.heads.hd;
        match ($operands.y.dtype(), hd / if faults::on(Fault::KernelOfOtherHeadSize) { 2 } else { 1 }) {
            (Dtype::F32, _) => concat!($op, "_f32"),
            (_, 32) => concat!($op, "_bf16_hd32"),
            (_, 64) => concat!($op, "_bf16_hd64"),
            (_, 128) => concat!($op, "_bf16_hd128"),
            _ => concat!($op, "_bf16"),
        }
    }};
}

impl Operands<'_> {
    /// Computes `y` and `L` for these rows, split over their chunks.
    pub(super) fn split(&self, rows: &[u32], mask: &AttnMask<'_>) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let dtype = self.y.dtype();
        let [q, k, v] = self.qkv;
        let qkv = args![q.at(self.gpu, dtype)?, k.at(self.gpu, dtype)?, v.at(self.gpu, dtype)?];
        self.launch_split(kernel_of_head_size!("decode_attention", self), qkv, rows, mask)
    }

    /// [`split`](Self::split) of rows whose keys and values are not in the pools yet: also writes them.
    pub(super) fn append(&self, rows: &[u32], mask: &AttnMask<'_>, new: &NewHeads) -> Result<()> {
        let [_, k, v] = self.qkv;
        let heads = new.args(self.gpu)?;
        new.write_pools([k, v], |[k, v]| {
            let args = [&heads as &[Arg], args![k, v]].concat();
            self.launch_split(kernel_of_head_size!("append_attention", self), &args, rows, mask)
        })
    }

    /// Launches `kernel`, whose first arguments are `first`.
    fn launch_split(
        &self,
        kernel: &'static str,
        first: &[Arg],
        rows: &[u32],
        mask: &AttnMask<'_>,
    ) -> Result<()> {
        let (gpu, heads) = (self.gpu, self.mask_args.heads);
        let (hd, group) = (heads.hd, heads.nh / heads.nkv);
        let bf16 = self.y.dtype() == Dtype::BF16;
        let shared = tiles::shared_chunks(mask, rows, if bf16 { (SHARED_QUERIES / group).max(1) } else { 1 });
        self.count(rows, &shared, mask);
        let chunks = rows.iter().map(|&n| tiles::chunks(mask, n as usize)).max().unwrap_or(0);
        let parts = rows.len() * heads.nh * chunks;
        let (ml, o) = (gpu.buffer(parts * 8)?, gpu.buffer(parts * hd * 4)?);
        let counters = gpu.counters(rows.len() * heads.nkv)?;
        let shared_bytes = match bf16 {
            true => {
                let operands = mma_ld(hd) * (2 * CHUNK + 16) + 16 * (CHUNK + 8);
                2 * operands + 4 * (16 * TILE_LD + CHUNK)
            }
            false => 4 * (CHUNK * (hd + 4) + group * (hd + CHUNK) + CHUNK),
        };
        let (y, lse) = (self.y.at(gpu, self.y.dtype())?, self.lse.at(gpu, Dtype::F32)?);
        // null: block i along x is row i
        let in_order = rows.iter().enumerate().all(|(i, &row)| i == row as usize);
        let rows_at = if in_order { At(0) } else { gpu.indices(rows)? };
        let own = args![ml.arg(), o.arg(), y, lse, counters, rows_at];
        let shared = if bf16 { args![gpu.indices(shared.as_flattened())?] } else { args![] as &[Arg] };
        let (mask_args, head_args) = (self.mask_args.args(), self.mask_args.head_args());
        let args = [first, own, shared, &mask_args, args![chunks], &head_args].concat();
        let grid = Grid::blocks([rows.len(), heads.nkv, chunks], 128).shared(shared_bytes);
        // SAFETY: the operations checked shapes and slots; there are partial results for every chunk of every row and
        // head, and one counter per row and KV head.
        unsafe { gpu.launch(kernel, grid, &args) }
    }

    /// Counts the bytes of keys and values that these rows read, and the bytes of partial results. Shared chunks are
    /// read once.
    fn count(&self, rows: &[u32], shared: &[[u32; 2]], mask: &AttnMask<'_>) {
        let Heads { nh, nkv, hd } = self.mask_args.heads;
        let visible: usize = rows.iter().map(|&n| mask.keys(n as usize).len()).sum();
        let read_by_others =
            shared.iter().filter(|[rows, _]| *rows == 0).map(|[_, chunks]| *chunks as usize * CHUNK);
        let keys = visible - read_by_others.sum::<usize>();
        let chunks: usize = rows.iter().map(|&n| tiles::chunks(mask, n as usize)).sum();
        // keys once per group of query heads; values too, but in f32 once per 16 heads of the group
        let times = if self.y.dtype() == Dtype::BF16 { 2 } else { 1 + (nh / nkv).div_ceil(16) };
        let read = times * keys * nkv * hd * self.y.dtype().bytes();
        // (m, l) and o of each head, written and read
        let parts = 2 * chunks * nh * (2 + hd) * 4;
        self.gpu.count_attention_bytes(read, parts);
    }
}
