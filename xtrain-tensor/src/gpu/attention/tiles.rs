//! How the work of an attention is cut into blocks. No cut changes a bit.
use std::cmp::Reverse;
use std::ops::Range;

use crate::operands::AttnMask;

/// Keys of a chunk.
pub(super) const CHUNK: usize = 64;

/// Rows at neighbouring positions of one sequence.
pub(super) fn runs(see: &AttnMask<'_>) -> Vec<Range<usize>> {
    let follows = |n: usize| see.seq[n] == see.seq[n - 1] && see.pos[n] == see.pos[n - 1] + 1;
    let (mut runs, mut first) = (Vec::new(), 0);
    for end in 1..=see.rows() {
        if end == see.rows() || !follows(end) {
            runs.push(first..end);
            first = end;
        }
    }
    runs
}

/// Whether a run has so few rows that its chunks are better computed side by side.
pub(super) fn split(run: &Range<usize>) -> bool {
    run.len() <= 4
}

/// Tiles of at most `size` (row, head of one group) pairs: (first row, pairs to skip, pairs), those with
/// the most keys first.
pub(super) fn of_rows(see: &AttnMask<'_>, runs: &[Range<usize>], group: usize, size: usize) -> Vec<[u32; 3]> {
    let mut tiles = Vec::new();
    for run in runs {
        let pairs = run.len() * group;
        tiles.extend(
            (0..pairs)
                .step_by(size)
                .map(|skip| [run.start as u32, skip as u32, size.min(pairs - skip) as u32]),
        );
    }
    let last = |&[row, skip, n]: &[u32; 3]| row as usize + (skip + n - 1) as usize / group;
    tiles.sort_by_key(|tile| Reverse(see.keys(last(tile)).len()));
    tiles
}

/// The rows of each sequence by position, and tiles of `size` of its positions: (where its rows begin,
/// their number, first position), those with the most rows first.
pub(super) fn of_keys(see: &AttnMask<'_>, size: usize) -> (Vec<u32>, Vec<[u32; 3]>) {
    let (mut order, mut tiles) = (Vec::with_capacity(see.rows()), Vec::new());
    for (_, rows) in see.rows_by_sequence() {
        let (first, len) = (order.len() as u32, rows.len() as u32);
        order.extend(rows.into_iter().map(|n| n as u32));
        tiles.extend((0..len).step_by(size).map(|at| [first, len, at]));
    }
    tiles.sort_by_key(|&[_, len, at]| Reverse(len - at));
    (order, tiles)
}

/// The chunks with a key that row `n` sees.
pub(super) fn chunks(see: &AttnMask<'_>, n: usize) -> usize {
    let keys = see.keys(n);
    keys.end.div_ceil(CHUNK) - keys.start / CHUNK
}

/// The most chunks that one of these rows sees.
pub(super) fn most_chunks(see: &AttnMask<'_>, rows: &[u32]) -> usize {
    rows.iter().map(|&n| chunks(see, n as usize)).max().unwrap_or(0)
}
