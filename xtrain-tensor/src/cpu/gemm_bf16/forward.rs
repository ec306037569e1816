//! `y = a B` and `y += a B` with packed B.
use std::ops::Range;

use half::bf16;

use super::super::gemm::{Beta, split, tiles};
use super::super::lanes::LANES;
use super::super::{Disjoint, Simd, pointwise};
use super::left::{Blocks, F32Block, PackedA, ParityBlock};
use super::operand::on_lattice;
use super::output::Output;
#[cfg(target_arch = "x86_64")]
use super::pair_dot;
use super::pairs::{Pairs, TILE, flat};
use super::tile::{Tile, panels_across, tile_rows};
use super::tiles::View;
use crate::Cpu;
use crate::device::recycle::Values;

/// `y = beta y + a b`, `h + a b` or `a b` rounded to bf16: y `[a.rows, b.columns]` row-major.
///
/// Order: that of [`super`]. With [`Beta::One`] the blocks are added to the values in y.
pub(crate) fn product(cpu: &Cpu, a: &PackedA<'_>, b: View<'_>, out: Output<'_>) {
    let [depth, columns] = b.shape();
    assert_eq!(a.depth, depth, "a and b have one depth");
    assert_eq!(out.len(), a.rows * columns, "y holds rows * columns values");
    let shape = [a.rows, depth, columns];
    match &a.blocks {
        Blocks::Amx(blocks) => amx_product(cpu, flat(blocks), shape, b, out),
        Blocks::InPlace(blocks) => amx_product(cpu, blocks, shape, b, out),
        Blocks::Parity(blocks) => parity_product(cpu, a, blocks, b, out),
        Blocks::Simd(blocks) => {
            let sum = |y: &mut [f32], beta| {
                let job = Job { simd: cpu.simd, a, blocks, b, y: &Disjoint::new(y), beta };
                split(cpu, shape, 1, |rows, panels| job.unit(rows, panels));
            };
            match out {
                Output::Sum(y, beta) => sum(y, beta),
                Output::Residual { h, y } => {
                    sum(y, Beta::Zero);
                    pointwise::accumulate(cpu, y, h);
                }
                Output::Rounded(rounded) => {
                    let mut y = Values::new(cpu.recycler.acquire::<f32>(rounded.len()), &cpu.recycler);
                    sum(y.make_mut(), Beta::Zero);
                    pointwise::cast_to(cpu, &y, rounded);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn amx_product(cpu: &Cpu, a: &[bf16], shape: [usize; 3], b: View<'_>, out: Output<'_>) {
    use super::amx;
    out.share(|out| {
        let job = amx::Job { a: amx::Rows::new(a, b.blocks()), b, out };
        split(cpu, shape, amx::ROWS, |rows, panels| job.unit(rows, panels));
    });
}

#[cfg(not(target_arch = "x86_64"))]
fn amx_product(_: &Cpu, _: &[bf16], _: [usize; 3], _: View<'_>, _: Output<'_>) {
    unreachable!("AMX is never detected here")
}

#[cfg(target_arch = "x86_64")]
fn parity_product(cpu: &Cpu, a: &PackedA<'_>, blocks: &[ParityBlock], b: View<'_>, out: Output<'_>) {
    out.share(|out| {
        let job = pair_dot::Job { a, blocks, b, out };
        let [depth, columns] = b.shape();
        split(cpu, [a.rows, depth, columns], 1, |rows, panels| job.unit(rows, panels));
    });
}

#[cfg(not(target_arch = "x86_64"))]
fn parity_product(_: &Cpu, _: &PackedA<'_>, _: &[ParityBlock], _: View<'_>, _: Output<'_>) {
    unreachable!("AVX-512 BF16 is never detected here")
}

struct Job<'a> {
    simd: Simd,
    a: &'a PackedA<'a>,
    blocks: &'a [F32Block],
    b: View<'a>,
    y: &'a Disjoint<'a, f32>,
    beta: Beta,
}

impl Job<'_> {
    /// Computes the outputs of `rows` in `panels`. Each output belongs to one unit.
    fn unit(&self, rows: Range<usize>, panels: Range<usize>) {
        let mut panel = panels.start;
        while panel < panels.end {
            let across = panels_across(self.simd, rows.len());
            let across = if panel + across <= panels.end { across } else { 1 };
            let tiles = tiles(rows.len(), tile_rows(self.simd));
            let next = (across == 1 && panel + 1 < panels.end).then(|| self.b.panel(panel + 1));
            for (i, (row, height)) in tiles.enumerate() {
                let rows = rows.start + row..rows.start + row + height;
                // the first two tiles prefetch half of the next panel each; for a single tile the hardware prefetcher
                // fetches the rest
                let prefetch = next.filter(|_| i < 2).and_then(|next| next.get(i * TILE..));
                self.tile(rows, panel..panel + across, prefetch);
            }
            panel += across;
        }
    }

    fn tile(&self, rows: Range<usize>, panels: Range<usize>, prefetch: Option<&[Pairs]>) {
        let (columns, blocks) = (self.b.shape()[1], self.b.blocks());
        let min_exp = self.a.min_exp(rows.clone());
        let tile = Tile {
            a: &self.blocks[rows.start * blocks..rows.end * blocks],
            on_lattice: panels.clone().all(|panel| on_lattice(min_exp, self.b.min_exp(panel))),
            b: self.b,
            columns: panels.start * LANES..columns.min(panels.end * LANES),
            panels,
            rows,
            y: self.y,
            y_step: columns,
            beta: self.beta,
            prefetch,
        };
        // SAFETY: these elements of y belong to this unit alone.
        unsafe { tile.run(self.simd) }
    }
}
