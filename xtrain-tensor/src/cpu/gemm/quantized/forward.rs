//! `y = x B` and `y += x B` with quantized B.
use std::ops::Range;

use super::dequantize::Dequantize;
use super::panels::{COLUMNS, View};
use super::tile::{Tile, max_rows};
use crate::cpu::gemm::panels::Row;
use crate::cpu::gemm::split::{CHUNK, split, tile_groups};
use crate::cpu::gemm::tile::{Beta, Later, Prefetch, TileJob, tile_rows};
use crate::cpu::lanes::{LANES, dispatch};
use crate::cpu::scratch::Buffer;
use crate::cpu::{Cpu, Disjoint, Simd};

/// `y = beta y + a b`, or with a residual `y = residual + (beta y + a b)`: y `[rows, b.columns]`, a `[rows, b.depth]`.
///
/// Order: that of [`gemm`](super::super), with the dequantized elements of b.
pub(crate) fn product(
    cpu: &Cpu,
    a: &[f32],
    b: View<'_>,
    y: &mut [f32],
    beta: Beta,
    residual: Option<&[f32]>,
) {
    let rows = a.len() / b.depth;
    assert!(a.len() == rows * b.depth && y.len() == rows * b.columns, "y holds rows * columns values");
    assert!(residual.is_none_or(|h| h.len() == y.len()), "the residual has the product's shape");
    let job = Product { simd: cpu.simd, a, b, y: Disjoint::new(y), beta, residual };
    let shape = [rows, b.depth, b.columns];
    if rows > max_rows(cpu.simd) {
        return split(cpu, shape, 1, |rows, units| units.for_each(|unit| job.lanes(&rows, unit * LANES)));
    }
    let interleaved = (rows > 1).then(|| interleave(a, rows));
    let a = interleaved.as_deref().unwrap_or(a);
    split(cpu, shape, 1, |_, units| job.tiles(a, units.start * LANES..units.end * LANES));
}

/// The elements of a `[rows, depth]` in the order of their depths: `[depth][rows]`.
fn interleave(a: &[f32], rows: usize) -> Buffer<f32> {
    /// Depths whose elements stay in the L1 cache.
    const DEPTHS: usize = 64;
    let mut out = Buffer::new(a.len());
    for (part, out) in out.chunks_mut(DEPTHS * rows).enumerate() {
        for (i, row) in a.chunks_exact(a.len() / rows).enumerate() {
            let row = &row[part * DEPTHS..];
            out[i..].iter_mut().step_by(rows).zip(row).for_each(|(to, &x)| *to = x);
        }
    }
    out
}

struct Product<'a> {
    simd: Simd,
    a: &'a [f32],
    b: View<'a>,
    y: Disjoint<'a, f32>,
    beta: Beta,
    residual: Option<&'a [f32]>,
}

impl Product<'_> {
    /// Computes all rows of `columns`, given the elements of a as `[depth][rows]`. Each output belongs to one unit.
    fn tiles(&self, a: &[f32], columns: Range<usize>) {
        let mut column = columns.start;
        while column < columns.end {
            let in_panel = COLUMNS - self.b.panel(column).column;
            let tile = Tile {
                a,
                b: self.b,
                column,
                columns: in_panel.min(columns.end - column),
                y: &self.y,
                first: column,
                y_step: self.b.columns,
                beta: self.beta,
                residual: self.residual,
            };
            // SAFETY: these elements of y belong to this unit alone.
            unsafe { tile.run(self.simd) }
            column += in_panel;
        }
    }

    /// Computes `rows` of the 32 columns from `column` on, which belong to one unit. The columns are dequantized chunk
    /// by chunk.
    fn lanes(&self, rows: &Range<usize>, column: usize) {
        let View { layout, depth, .. } = self.b;
        let mut chunk = Buffer::<Row>::new(CHUNK.min(depth));
        for k in (0..depth).step_by(CHUNK) {
            let to = &mut chunk[..CHUNK.min(depth - k)];
            dispatch(self.simd, Dequantize { layout, panel: self.b.panel(column), from: k, to });
            self.chunk(rows, column, k, to);
        }
    }

    /// Adds the products of a chunk that starts at depth `k`.
    fn chunk(&self, rows: &Range<usize>, column: usize, k: usize, b: &[Row]) {
        let View { depth, columns: step, .. } = self.b;
        let columns = LANES.min(step - column);
        for group in tile_groups(rows.len(), tile_rows(self.simd)) {
            let row = rows.start + group.row;
            let first = row * step + column;
            // `at` checks the address one past the last element, so all elements are inside y
            self.y.at((row + group.height * group.count - 1) * step + column + columns);
            let last = k + b.len() == depth;
            let a = self.a[row * depth + k..(row + group.height * group.count) * depth].as_ptr();
            let below = group.height * depth;
            let tiles = TileJob {
                a,
                row_step: depth,
                k_step: 1,
                b: b.as_ptr().cast(),
                b_step: LANES,
                panel_step: 0,
                depth: b.len(),
                c: self.y.at(first),
                c_step: step,
                columns,
                residual: self.residual.filter(|_| last).map_or(std::ptr::null(), |h| h[first..].as_ptr()),
                beta: if k == 0 { self.beta } else { Beta::One },
                count: group.count,
                l1: Prefetch {
                    from: a.wrapping_add(below),
                    step: group.height,
                    tile_step: below,
                    tiles: group.count,
                },
                l2: Later::Nothing,
            };
            // SAFETY: a holds `height * count` rows, checked by its slice. b has `depth` rows of 32 elements. The rows
            // of c are inside y, checked above; so are those of `residual`, which has the same length. The elements
            // of c belong to this unit alone.
            unsafe { tiles.run(self.simd, group.height) }
        }
    }
}
