//! Partition of attention into blocks. The partition changes no bit of the result.
use std::cmp::Reverse;
use std::ops::Range;

use crate::faults::{self, Fault};
use crate::operands::{AttnMask, Slots};

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

/// Number of leading chunks of `a` and `b` whose keys are the same and all visible to both rows.
fn common_chunks(mask: &AttnMask<'_>, a: u32, b: u32) -> usize {
    let [(a, a_pos), (b, b_pos)] = [a as usize, b as usize].map(|n| (mask.seq[n], mask.pos[n]));
    let visible = a_pos.min(b_pos) as usize + 1;
    let same = match mask.slots {
        // a window hides the first keys from the later row
        _ if mask.window.is_some_and(|w| w < visible || !faults::on(Fault::SharedChunkBehindWindow)) => 0,
        _ if a == b => visible,
        Slots::Runs { .. } => 0,
        Slots::Pages { page, table } => {
            let pages = table[a as usize].iter().zip(&table[b as usize]);
            page * pages.take_while(|(a, b)| a == b).count()
        }
    };
    let partly = if faults::on(Fault::SharedChunkPartlyVisible) { CHUNK - 1 } else { 0 };
    (same.min(visible) + partly) / CHUNK
}

/// Groups of at most `size` consecutive rows that share leading chunks of keys. For each row: the number of rows for
/// which its block computes these chunks (0: the block of an earlier row does), and the number of these chunks.
///
/// A row joins the group before it unless the group would then share less than half of its chunks.
pub(super) fn shared_chunks(mask: &AttnMask<'_>, rows: &[u32], size: usize) -> Vec<[u32; 2]> {
    let mut groups = Vec::with_capacity(rows.len());
    let mut first = 0;
    while first < rows.len() {
        let (mut len, mut chunks) = (1, usize::MAX);
        while len < size && first + len < rows.len() {
            let common = chunks.min(common_chunks(mask, rows[first], rows[first + len]));
            if common == 0 || (chunks != usize::MAX && 2 * common < chunks) {
                break;
            }
            (len, chunks) = (len + 1, common);
        }
        let chunks = if len == 1 { 0 } else { chunks as u32 };
        groups.extend((0..len).map(|i| [if i == 0 { len as u32 } else { 0 }, chunks]));
        first += len;
    }
    groups
}

/// Number of chunks with a visible key for row `n`.
pub(super) fn chunks(mask: &AttnMask<'_>, n: usize) -> usize {
    let keys = mask.keys(n);
    keys.end.div_ceil(CHUNK) - keys.start / CHUNK
}
