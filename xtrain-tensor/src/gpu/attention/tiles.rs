//! How the work of an attention is cut into blocks. No cut changes a bit.
use std::cmp::Reverse;

use super::CHUNK;
use crate::ops::Visible;

/// Tiles of at most `size` (row, head of one group) pairs, of rows at neighbouring positions of one
/// sequence: (first row, pairs to skip, pairs), those with the most keys first.
pub(super) fn of_rows(see: &Visible<'_>, group: usize, size: usize) -> Vec<[u32; 3]> {
    let follows = |n: usize| see.seq[n] == see.seq[n - 1] && see.pos[n] == see.pos[n - 1] + 1;
    let (mut tiles, mut first) = (Vec::new(), 0);
    for end in 1..=see.rows() {
        if end < see.rows() && follows(end) {
            continue;
        }
        let pairs = (end - first) * group;
        tiles.extend(
            (0..pairs).step_by(size).map(|skip| [first as u32, skip as u32, size.min(pairs - skip) as u32]),
        );
        first = end;
    }
    let last = |&[row, skip, n]: &[u32; 3]| row as usize + (skip + n - 1) as usize / group;
    tiles.sort_by_key(|tile| Reverse(see.keys(last(tile)).len()));
    tiles
}

/// The rows of each sequence by position, and tiles of `size` of its positions: (where its rows begin,
/// their number, first position), those with the most rows first.
pub(super) fn of_keys(see: &Visible<'_>, size: usize) -> (Vec<u32>, Vec<[u32; 3]>) {
    let (mut order, mut tiles) = (Vec::with_capacity(see.rows()), Vec::new());
    for (_, rows) in see.rows_by_sequence() {
        let (first, len) = (order.len() as u32, rows.len() as u32);
        order.extend(rows.into_iter().map(|n| n as u32));
        tiles.extend((0..len).step_by(size).map(|at| [first, len, at]));
    }
    tiles.sort_by_key(|&[_, len, at]| Reverse(len - at));
    (order, tiles)
}

/// The most chunks that a row sees.
pub(super) fn most_chunks(see: &Visible<'_>) -> usize {
    let chunks = |n| {
        let keys = see.keys(n);
        keys.end.div_ceil(CHUNK) - keys.start / CHUNK
    };
    (0..see.rows()).map(chunks).max().unwrap_or(0)
}
