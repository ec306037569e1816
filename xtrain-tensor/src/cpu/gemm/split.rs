//! How a product is split into units of work and into tiles.
use std::ops::Range;

use crate::cpu::lanes::LANES;
use crate::device::Cpu;

/// Depth of a chunk.
pub(crate) const CHUNK: usize = 256;

/// Elements per cache line: half a row of a panel.
pub(super) const LINE: usize = 16;
/// Products with fewer multiply-adds (about 5 us) run on the calling thread.
pub(super) const SERIAL: usize = 1 << 18;
/// Maximum rows of a unit of work. Their chunk of A stays in the L2 cache.
const ROW_BAND: usize = 192;

/// Calls `unit(rows, panels)` so that each output of a product of shape `[rows, depth, columns]` is in exactly one
/// unit, on as many threads as are useful. There are more units than threads, so a preempted thread delays only its
/// own unit. The rows of a unit begin at a multiple of `step`.
pub(crate) fn split(
    cpu: &Cpu,
    shape: [usize; 3],
    step: usize,
    unit: impl Fn(Range<usize>, Range<usize>) + Sync,
) {
    let [rows, depth, columns] = shape;
    let panels = columns.div_ceil(LANES);
    let bands = rows.div_ceil(ROW_BAND);
    let serial = cpu.pool.threads() == 1 || rows * depth * columns < SERIAL;
    let groups = if serial { 1 } else { (4 * cpu.pool.threads()).div_ceil(bands).min(panels.div_ceil(4)) };
    let run = |i: usize| {
        let (band, group) = (i / groups, i % groups);
        let bound = |band: usize| if band == bands { rows } else { band * (rows / step) / bands * step };
        unit(bound(band)..bound(band + 1), group * panels / groups..(group + 1) * panels / groups);
    };
    if serial { (0..bands).for_each(run) } else { cpu.pool.run(bands * groups, run) }
}

/// Splits `total` rows into tiles of at most `max` rows, as evenly as possible. Items: (first row, rows).
pub(crate) fn tiles(total: usize, max: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let count = total.div_ceil(max);
    (0..count).map(move |i| {
        let from = i * total / count;
        (from, (i + 1) * total / count - from)
    })
}

/// `count` tiles of `height` rows each, one below the other, from row `row` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileGroup {
    pub(super) row: usize,
    pub(super) height: usize,
    pub(super) count: usize,
}

/// Splits `total` rows into as many tiles as [`tiles`], grouped by height. The taller tiles come first.
pub(super) fn tile_groups(total: usize, max: usize) -> impl Iterator<Item = TileGroup> {
    let count = total.div_ceil(max).max(1);
    let (height, more) = (total / count, total % count);
    let taller = TileGroup { row: 0, height: height + 1, count: more };
    [taller, TileGroup { row: more * (height + 1), height, count: count - more }]
        .into_iter()
        .filter(|group| group.height * group.count > 0)
}
