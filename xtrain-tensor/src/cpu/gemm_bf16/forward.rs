//! `y = a B` and `y += a B` over packed tiles.
use std::ops::Range;

use super::super::gemm::{Start, split, tiles};
use super::super::lanes::LANES;
use super::super::{Disjoint, Simd};
use super::left::{Blocks, Left, Wide};
use super::tile::{Flush, MOST_ROWS, Tile, tile_rows};
use super::tiles::View;
use super::{may_continue, on_lattice};
use crate::Cpu;

/// `y = start + a b`: y `[a.rows, b.columns]` row-major, f32.
///
/// Order: [`super`]'s; with [`Start::Continue`] the blocks go on into y.
pub(crate) fn product(cpu: &Cpu, a: &Left, b: View<'_>, y: &mut [f32], start: Start) {
    let [depth, columns] = b.shape();
    assert_eq!(a.depth, depth, "a and b have one depth");
    assert_eq!(y.len(), a.rows * columns, "y holds rows * columns values");
    if start == Start::Zero {
        y.fill(0.0);
    }
    let y = Disjoint::new(y);
    match &a.blocks {
        #[cfg(target_arch = "x86_64")]
        Blocks::Narrow(blocks) => {
            let job = super::amx::Job::new(blocks, b, &y);
            split(cpu, [a.rows, depth, columns], |rows, panels| job.unit(rows, panels));
        }
        #[cfg(not(target_arch = "x86_64"))]
        Blocks::Narrow(_) => unreachable!("AMX is never detected here"),
        Blocks::Wide(blocks) => {
            let job = Job { simd: cpu.simd, a, blocks, b, y: &y };
            split(cpu, [a.rows, depth, columns], |rows, panels| job.unit(rows, panels));
        }
    }
}

struct Job<'a> {
    simd: Simd,
    a: &'a Left,
    blocks: &'a [Wide],
    b: View<'a>,
    y: &'a Disjoint<'a, f32>,
}

impl Job<'_> {
    /// The outputs of `rows` in `panels`. Each output belongs to one unit.
    fn unit(&self, rows: Range<usize>, panels: Range<usize>) {
        for panel in panels {
            for (row, height) in tiles(rows.len(), tile_rows(self.simd)) {
                self.tile(rows.start + row..rows.start + row + height, panel);
            }
        }
    }

    fn tile(&self, rows: Range<usize>, panel: usize) {
        let columns = self.b.shape()[1];
        let width = LANES.min(columns - panel * LANES);
        // SAFETY: these elements of y belong to this unit alone.
        let y = |row: usize| unsafe {
            let from = row * columns + panel * LANES;
            self.y.slice(from..from + width)
        };
        let mut c = [[0.0; LANES]; MOST_ROWS];
        let mut on_grid = on_lattice(self.a.low(rows.clone()), self.b.low(panel));
        for (c, row) in c.iter_mut().zip(rows.clone()) {
            c[..width].copy_from_slice(y(row));
            on_grid &= c.iter().all(|&x| may_continue(x));
        }
        let flush = if on_grid { Flush::Never } else { Flush::Check };
        let blocks = self.b.blocks();
        let a = &self.blocks[rows.start * blocks..rows.end * blocks];
        Tile { a, b: self.b.panel(panel), c: &mut c[..rows.len()], flush }.run(self.simd);
        for (c, row) in c.iter().zip(rows) {
            y(row).copy_from_slice(&c[..width]);
        }
    }
}
