//! Partition of attention into blocks. The partition changes no bit of the result.
use std::cmp::Reverse;
use std::ops::Range;

use crate::operands::AttnMask;

/// Keys per chunk.
pub(super) const CHUNK: usize = 64;

/// Maximal runs of rows at consecutive positions of one sequence.
pub(super) fn runs(mask: &AttnMask<'_>) -> Vec<Range<usize>> {
    let follows = |n: usize| mask.seq[n] == mask.seq[n - 1] && mask.pos[n] == mask.pos[n - 1] + 1;
    let (mut runs, mut first) = (Vec::new(), 0);
    for end in 1..=mask.rows() {
        if end == mask.rows() || !follows(end) {
            runs.push(first..end);
            first = end;
        }
    }
    runs
}

/// Whether a run is short enough for split-K over chunks to be faster than tiles.
pub(super) fn split(run: &Range<usize>) -> bool {
    run.len() <= 4
}

/// Tiles of at most `size` (row, head of one group) pairs: [first row, pairs to skip, number of pairs]. Tiles with
/// the most keys come first.
pub(super) fn of_rows(
    mask: &AttnMask<'_>,
    runs: &[Range<usize>],
    group: usize,
    size: usize,
) -> Vec<[u32; 3]> {
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
    tiles.sort_by_key(|tile| Reverse(mask.keys(last(tile)).len()));
    tiles
}

/// The rows of each sequence ordered by position, and tiles of `size` positions: [offset of the sequence's rows,
/// number of rows, first position]. Tiles with the most rows come first.
pub(super) fn of_keys(mask: &AttnMask<'_>, size: usize) -> (Vec<u32>, Vec<[u32; 3]>) {
    let (mut order, mut tiles) = (Vec::with_capacity(mask.rows()), Vec::new());
    for (_, rows) in mask.rows_by_sequence() {
        let (first, len) = (order.len() as u32, rows.len() as u32);
        order.extend(rows.into_iter().map(|n| n as u32));
        tiles.extend((0..len).step_by(size).map(|at| [first, len, at]));
    }
    tiles.sort_by_key(|&[_, len, at]| Reverse(len - at));
    (order, tiles)
}

/// Number of chunks with a visible key for row `n`.
pub(super) fn chunks(mask: &AttnMask<'_>, n: usize) -> usize {
    let keys = mask.keys(n);
    keys.end.div_ceil(CHUNK) - keys.start / CHUNK
}
