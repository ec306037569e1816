//! The optimizer: all tensors of a model in a few launches, by a table of where they lie.
use super::{At, Buffer, Gpu, Grid, args};
use crate::ops::{AdamWScalars, Update, Updated};
use crate::{Dtype, Result, Tensor};

/// Elements that a block updates.
const BLOCK: usize = 4096;

/// Rows that a block sums.
const ROWS: usize = 8;

/// The entries of `Parameter` in kernels/optimizer.cuh, word by word.
#[derive(Default)]
struct Table {
    words: Vec<u32>,
    tensors: usize,
    blocks: usize,
    rows_blocks: usize,
    rows: usize,
}

impl Table {
    /// Appends a tensor like `g`, which lies at `[w, g, m, v]`.
    fn push(&mut self, at: [u64; 4], g: &Tensor) {
        let (n, width) = (g.len(), g.width());
        let rows = n / width.max(1);
        for word in at.into_iter().chain([n as u64]) {
            self.words.extend([word as u32, (word >> 32) as u32]);
        }
        let decayed = u32::from(g.shape().len() > 1);
        let starts = [self.blocks, self.rows_blocks, self.rows, rows].map(|x| x as u32);
        self.words.extend([width as u32, decayed]);
        self.words.extend(starts);
        self.tensors += 1;
        self.blocks += n.div_ceil(BLOCK);
        self.rows_blocks += rows.div_ceil(ROWS);
        self.rows += rows;
    }
}

/// Sum of squares, norm, clip and whether the norm is finite, on the device.
fn norm(gpu: &Gpu, table: &Table, at: At, max_norm: f32) -> Result<Buffer> {
    let (sums, squares, verdict) =
        (gpu.buffer(4 * table.rows)?, gpu.buffer(4 * table.tensors)?, gpu.buffer(20)?);
    let n = table.tensors as u32;
    // SAFETY: the table's gradients are live; `sums` has a place for each of their rows, `squares` for
    // each tensor; the blocks are those that the table counted.
    unsafe {
        let grid = Grid::blocks([table.rows_blocks, 1, 1], 32 * ROWS as u32);
        gpu.launch("row_squares_f32", grid, args![at, n, sums.arg()])?;
        let grid = Grid::blocks([table.tensors, 1, 1], 32);
        gpu.launch("tensor_squares_f32", grid, args![at, sums.arg(), squares.arg()])?;
        let args = args![squares.arg(), n, max_norm, verdict.arg()];
        gpu.launch("norm_total_f32", Grid::blocks([1, 1, 1], 32), args)?;
    }
    Ok(verdict)
}

/// The sums of squares of `gs` in walk order: their total, and its root.
pub(crate) fn squares(gpu: &Gpu, gs: &[&Tensor]) -> Result<[f32; 2]> {
    let mut table = Table::default();
    for g in gs {
        table.push([0, g.at(gpu, Dtype::F32)?.0, 0, 0], g);
    }
    let verdict = norm(gpu, &table, gpu.indices(&table.words)?, f32::INFINITY)?;
    let got = gpu.download::<f32>(&verdict)?;
    Ok([got[0], got[1]])
}

/// Updates every tensor, its gradient shortened by `clip`.
pub(crate) fn adamw(gpu: &Gpu, all: &mut [Update<'_>], clip: f32, s: &AdamWScalars) -> Result<()> {
    let table = updated(gpu, all)?;
    let verdict = gpu.upload(&[0f32, 0.0, clip, 1.0, 0.0])?;
    update(gpu, &table, gpu.indices(&table.words)?, &verdict, s)
}

/// Updates every tensor, the gradients together shortened to `max_norm`, and nothing where their norm is
/// not finite. The verdict is what the host waits for.
pub(crate) fn adamw_all(
    gpu: &Gpu,
    all: &mut [Update<'_>],
    max_norm: f32,
    s: &AdamWScalars,
) -> Result<Updated> {
    let table = updated(gpu, all)?;
    let at = gpu.indices(&table.words)?;
    let verdict = norm(gpu, &table, at, max_norm)?;
    update(gpu, &table, at, &verdict, s)?;
    let got = gpu.download::<f32>(&verdict)?;
    Ok(Updated { norm: got[1], finite: got[4] == 0.0 })
}

fn updated(gpu: &Gpu, all: &mut [Update<'_>]) -> Result<Table> {
    let mut table = Table::default();
    for Update { w, g, m, v } in all {
        let [w, m, v] = [w.at_mut(gpu, Dtype::F32)?, m.at_mut(gpu, Dtype::F32)?, v.at_mut(gpu, Dtype::F32)?];
        table.push([w.0, g.at(gpu, Dtype::F32)?.0, m.0, v.0], g);
    }
    Ok(table)
}

fn update(gpu: &Gpu, table: &Table, at: At, verdict: &Buffer, s: &AdamWScalars) -> Result<()> {
    let n = table.tensors as u32;
    let args = args![at, n, verdict.arg(), s.s1, s.s2, s.s3, s.keep, s.step, s.c2, s.eps];
    // SAFETY: the table's four buffers of each tensor are live and of its length, and those that change
    // are its own; the blocks are those that the table counted.
    unsafe { gpu.launch("adamw_f32", Grid::blocks([table.blocks, 1, 1], 256), args) }
}
