//! Optimizer launches: all tensors of a model in a few kernels, driven by a table of their device addresses.
use super::{At, Buffer, Gpu, Grid, args};
use crate::operands::{AdamWScalars, Update, Updated};
use crate::{Dtype, Result, Tensor};

/// Elements per block of `adamw`.
const BLOCK: usize = 4096;

/// Rows per block of `row_squares`.
const ROWS: usize = 8;

/// Table of `Parameter` entries (kernels/optimizer.cuh), as 32-bit words.
#[derive(Default)]
struct Table {
    words: Vec<u32>,
    tensors: usize,
    blocks: usize,
    rows_blocks: usize,
    rows: usize,
}

impl Table {
    /// Appends a tensor with the shape of `g`; `addresses` are those of `[w, g, m, v]`.
    fn push(&mut self, addresses: [u64; 4], g: &Tensor) {
        let (n, width) = (g.len(), g.width());
        let rows = n / width.max(1);
        for word in addresses.into_iter().chain([n as u64]) {
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

/// Computes the `ClipState` on the device: sum of squares, norm, clip factor, finiteness of the norm, overflow flag.
fn norm(gpu: &Gpu, table: &Table, at: At, max_norm: f32) -> Result<Buffer> {
    let (sums, squares, clip_state) =
        (gpu.buffer(4 * table.rows)?, gpu.buffer(4 * table.tensors)?, gpu.buffer(20)?);
    let n = table.tensors;
    // SAFETY: the gradients of the table are live; `sums` has one entry per row, `squares` one per tensor; the grids
    // match the table's block counts.
    unsafe {
        let grid = Grid::blocks([table.rows_blocks, 1, 1], 32 * ROWS as u32);
        gpu.launch("row_squares_f32", grid, args![at, n, sums.arg()])?;
        let grid = Grid::blocks([table.tensors, 1, 1], 32);
        gpu.launch("tensor_squares_f32", grid, args![at, sums.arg(), squares.arg()])?;
        let args = args![squares.arg(), n, max_norm, clip_state.arg()];
        gpu.launch("norm_total_f32", Grid::blocks([1, 1, 1], 32), args)?;
    }
    Ok(clip_state)
}

/// The *sum32* of the squares of each row, for all rows of `gradients` in order. Synchronizes.
pub(crate) fn row_squares(gpu: &Gpu, gradients: &[&Tensor]) -> Result<Vec<f32>> {
    let mut table = Table::default();
    for g in gradients {
        table.push([0, g.at(gpu, Dtype::F32)?.0, 0, 0], g);
    }
    if table.rows == 0 {
        return Ok(Vec::new());
    }
    let (at, sums) = (gpu.indices(&table.words)?, gpu.buffer(4 * table.rows)?);
    let grid = Grid::blocks([table.rows_blocks, 1, 1], 32 * ROWS as u32);
    // SAFETY: the gradients of the table are live; `sums` has one entry per row; the grid matches the block count.
    unsafe { gpu.launch("row_squares_f32", grid, args![at, table.tensors, sums.arg()])? };
    gpu.download_first(&sums, table.rows)
}

/// The update of every tensor with a finite norm and its clip factor. Returns whether all updated values are finite.
/// Synchronizes to read it.
pub(crate) fn update(gpu: &Gpu, all: &mut [Update<'_>], clip: f32, s: &AdamWScalars) -> Result<bool> {
    let table = table_of(gpu, all)?;
    if table.tensors == 0 {
        return Ok(true);
    }
    let at = gpu.indices(&table.words)?;
    // squares and norm, which the kernel does not read; the factor; the norm is finite; nothing has overflowed
    let clip_state = gpu.upload(&[0.0, 0.0, clip, 1.0, 0.0])?;
    launch_adamw(gpu, &table, [at, clip_state.arg()], s)?;
    Ok(gpu.download::<f32>(&clip_state)?[4] == 0.0)
}

fn table_of(gpu: &Gpu, all: &mut [Update<'_>]) -> Result<Table> {
    let mut table = Table::default();
    for Update { w, g, m, v } in all {
        let [w, m, v] = [w.at_mut(gpu, Dtype::F32)?, m.at_mut(gpu, Dtype::F32)?, v.at_mut(gpu, Dtype::F32)?];
        table.push([w.0, g.at(gpu, Dtype::F32)?.0, m.0, v.0], g);
    }
    Ok(table)
}

/// Queues the update of the tensors of a table at `at`.
fn launch_adamw(gpu: &Gpu, table: &Table, [at, clip_state]: [At; 2], s: &AdamWScalars) -> Result<()> {
    let args = args![at, table.tensors, clip_state, s.s1, s.s2, s.s3, s.keep, s.step, s.c2, s.eps];
    // SAFETY: the four buffers of each tensor are live, have its length, and the mutable ones are borrowed
    // exclusively; the grid matches the table's block count.
    unsafe { gpu.launch("adamw_f32", Grid::blocks([table.blocks, 1, 1], 256), args) }
}

/// The sum of squares of `g`. Synchronizes.
pub(crate) fn sum_of_squares(gpu: &Gpu, g: &Tensor) -> Result<f32> {
    let mut table = Table::default();
    table.push([0, g.at(gpu, Dtype::F32)?.0, 0, 0], g);
    let clip_state = norm(gpu, &table, gpu.indices(&table.words)?, f32::INFINITY)?;
    Ok(gpu.download::<f32>(&clip_state)?[0])
}

/// Updates every tensor, with the global gradient norm clipped to `max_norm`. Updates nothing if the norm is not
/// finite. Synchronizes to read the `ClipState`.
pub(crate) fn adamw_all(
    gpu: &Gpu,
    all: &mut [Update<'_>],
    max_norm: f32,
    s: &AdamWScalars,
) -> Result<Updated> {
    let table = table_of(gpu, all)?;
    let at = gpu.indices(&table.words)?;
    let clip_state = norm(gpu, &table, at, max_norm)?;
    launch_adamw(gpu, &table, [at, clip_state.arg()], s)?;
    let values = gpu.download::<f32>(&clip_state)?;
    Ok(Updated { norm: values[1], finite: values[4] == 0.0 })
}
