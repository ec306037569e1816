//! f32 matrix products in the order of docs/numerics.md, section 2: chunks of 256 along the depth,
//! each an fma chain from +0, `y = y + chunk` in rising order. Only outputs are split among threads.
use std::ops::Range;

use super::lanes::LANES;
use crate::Cpu;

mod forward;
mod gradient;
mod panels;
mod tile;

pub(crate) use forward::{Matrix, product, product_residual};
pub(crate) use gradient::weight_gradient;
pub(crate) use panels::{Panels, View, first_panel};
pub(crate) use tile::Beta;

/// Depth of a chunk.
pub(crate) const CHUNK: usize = 256;

/// Elements of a cache line.
const LINE: usize = 16;
/// Multiply-adds below which a product stays on the caller's thread: about 5 us.
const SERIAL: usize = 1 << 18;
/// Rows of a unit of work: their chunk of the left operand stays in the second-level cache.
const BAND: usize = 192;

/// Calls `unit(rows, panels)` so that every output of a product of shape `[rows, depth, columns]` is in
/// one unit, on as many threads as it is worth. Units are more than threads: a thread that the system
/// takes away holds up its unit only.
pub(crate) fn split(cpu: &Cpu, shape: [usize; 3], unit: impl Fn(Range<usize>, Range<usize>) + Sync) {
    let [rows, depth, columns] = shape;
    let panels = columns.div_ceil(LANES);
    let bands = rows.div_ceil(BAND);
    let serial = cpu.pool.threads() == 1 || rows * depth * columns < SERIAL;
    let groups = if serial { 1 } else { (4 * cpu.pool.threads()).div_ceil(bands).min(panels.div_ceil(4)) };
    let run = |i: usize| {
        let (band, group) = (i / groups, i % groups);
        let rows = band * rows / bands..(band + 1) * rows / bands;
        unit(rows, group * panels / groups..(group + 1) * panels / groups);
    };
    if serial { (0..bands).for_each(run) } else { cpu.pool.run(bands * groups, run) }
}

/// `total` rows as tiles of at max `max`, as even as can be: (first row, rows).
pub(crate) fn tiles(total: usize, max: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let count = total.div_ceil(max);
    (0..count).map(move |i| {
        let from = i * total / count;
        (from, (i + 1) * total / count - from)
    })
}

/// `total` rows as tiles of at max `max`, as even as can be, those of one height together: (first row, rows of a
/// tile, tiles).
fn tile_groups(total: usize, max: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let count = total.div_ceil(max).max(1);
    let (height, more) = (total / count, total % count);
    let taller = (0, height + 1, more);
    [taller, (more * (height + 1), height, count - more)]
        .into_iter()
        .filter(|(_, height, count)| height * count > 0)
}

#[cfg(test)]
mod tests;
