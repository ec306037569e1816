//! The gradient of a weight in bf16: `g += dy^T x`, sample by sample.
use std::ops::Range;

use super::super::Disjoint;
use super::super::gemm::Beta;
use super::forward::product;
use super::left::PackedA;
use super::operand::{BLOCK, Operand};
use super::output::Output;
use super::tiles::TilePanels;
use crate::Cpu;
use crate::error::Result;

/// Rows packed at a time, a multiple of the block.
const SLAB: usize = 1024;
/// Outputs of a band, a multiple of the rows of a tile with AMX.
const MAX_BAND: usize = 256;
const MIN_BAND: usize = 64;
const STEP: usize = 32;

/// `g[o][i] = g[o][i] + block` for every sample and, inside it, for every block of 32 rows counted from the sample's
/// first row, in ascending order. The last block is padded with zeros. The arithmetic of a block of `dy[r][o]` and
/// `x[r][i]` is that of [`super`], including flush to zero. An f32 dy is rounded to bf16.
///
/// g `[out, in]`, dy `[rows, out]`, x `[rows, in]`, row-major; `shape = [out, in]`.
///
/// # Errors
/// [`Error::Memory`](crate::Error::Memory): there is no memory for a part of x.
pub(crate) fn weight_gradient<A: Operand, B: Operand>(
    cpu: &Cpu,
    dy: &[A],
    x: &[B],
    samples: &[Range<usize>],
    g: &mut [f32],
    shape: [usize; 2],
) -> Result<()> {
    let [out, inputs] = shape;
    let end = samples.iter().map(|s| s.end).max().unwrap_or(0);
    assert!(dy.len() >= end * out && x.len() >= end * inputs, "the samples' rows exist");
    // the blocks of all samples in one list: padding to whole blocks is the only boundary between samples
    let padded = |s: &Range<usize>| {
        let pad = s.len().next_multiple_of(BLOCK) - s.len();
        s.clone().map(Some).chain(std::iter::repeat_n(None, pad))
    };
    let rows: Vec<Option<usize>> = samples.iter().flat_map(padded).collect();
    // bands of outputs: those of dy are packed in the L2 cache of the thread that computes them
    let threads = cpu.pool.threads();
    let bands =
        out.div_ceil(MAX_BAND).max(if threads == 1 { 1 } else { (4 * threads).min(out.div_ceil(MIN_BAND)) });
    let bound = |band: usize| if band == bands { out } else { band * (out / STEP) / bands * STEP };
    for rows in rows.chunks(SLAB) {
        let b = TilePanels::of_rows(cpu, [rows.len(), inputs], |k| row_or_empty(x, rows[k], inputs))?;
        if bands < threads {
            // too few bands for all threads: the threads split the whole product, by rows and panels
            let a = PackedA::transposed(cpu, [out, rows.len()], |k| row_or_empty(dy, rows[k], out));
            product(cpu, &a, b.view(), Output::Sum(g, Beta::One));
            continue;
        }
        let g = Disjoint::new(g);
        cpu.pool.run(bands, |band| {
            let band = bound(band)..bound(band + 1);
            let a = PackedA::transposed(cpu, [band.len(), rows.len()], |k| {
                match row_or_empty(dy, rows[k], out) {
                    [] => &[],
                    dy => &dy[band.clone()],
                }
            });
            // SAFETY: the outputs of this band; bands are disjoint.
            let g = unsafe { g.slice(band.start * inputs..band.end * inputs) };
            product(cpu, &a, b.view(), Output::Sum(g, Beta::One));
        });
    }
    Ok(())
}

/// A row of a row-major matrix. `None`: an empty slice.
fn row_or_empty<T>(matrix: &[T], row: Option<usize>, columns: usize) -> &[T] {
    row.map_or(&[], |row| &matrix[row * columns..][..columns])
}
