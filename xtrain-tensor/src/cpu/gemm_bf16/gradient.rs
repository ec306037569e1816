//! The gradient of a weight in bf16: `g += dy^T x`, sample by sample.
use std::ops::Range;

use super::super::gemm::Beta;
use super::forward::product;
use super::left::PackedA;
use super::operand::{BLOCK, Operand};
use super::tiles::TilePanels;
use crate::Cpu;

/// Rows packed at a time, a multiple of the block.
const SLAB: usize = 1024;

/// `g[o][i] = g[o][i] + block` for every sample and, inside it, for every block of 32 rows counted from the sample's
/// first row, in ascending order. The last block is padded with zeros. The arithmetic of a block of `dy[r][o]` and
/// `x[r][i]` is that of [`super`], including flush to zero. An f32 dy is rounded to bf16.
///
/// g `[out, in]`, dy `[rows, out]`, x `[rows, in]`, row-major; `shape = [out, in]`.
pub(crate) fn weight_gradient<A: Operand, B: Operand>(
    cpu: &Cpu,
    dy: &[A],
    x: &[B],
    samples: &[Range<usize>],
    g: &mut [f32],
    shape: [usize; 2],
) {
    let [out, inputs] = shape;
    let end = samples.iter().map(|s| s.end).max().unwrap_or(0);
    assert!(dy.len() >= end * out && x.len() >= end * inputs, "the samples' rows exist");
    // the blocks of all samples in one list: padding to whole blocks is the only boundary between samples
    let padded = |s: &Range<usize>| {
        let pad = s.len().next_multiple_of(BLOCK) - s.len();
        s.clone().map(Some).chain(std::iter::repeat_n(None, pad))
    };
    let rows: Vec<Option<usize>> = samples.iter().flat_map(padded).collect();
    for rows in rows.chunks(SLAB) {
        let a = PackedA::transposed(cpu, [out, rows.len()], |k| row_or_empty(dy, rows[k], out));
        let b = TilePanels::of_rows(cpu, [rows.len(), inputs], |k| row_or_empty(x, rows[k], inputs));
        product(cpu, &a, b.view(), g, Beta::One);
    }
}

/// A row of a row-major matrix. `None`: an empty slice.
fn row_or_empty<T>(matrix: &[T], row: Option<usize>, columns: usize) -> &[T] {
    row.map_or(&[], |row| &matrix[row * columns..][..columns])
}
