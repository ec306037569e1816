//! Splitting of the rows and the vocabulary of a loss. No chunk of a reduction is split.
use std::ops::Range;

use crate::operands::Samples;

/// The CPU keeps at least this number of logits in memory: 16 MiB of them.
pub(crate) const MIN_LOGITS: usize = 1 << 22;
/// Maximum rows of logits in memory beyond that number.
const MAX_ROWS: usize = 1024;

/// The maximum number of logits that the loss keeps in memory on a CPU, for a head of `out` tokens and `width` channels:
/// as many as the head has weights, at least 16 MiB of them, at most 1,024 rows beyond that.
///
/// Each block of rows reads the head in both directions and its gradient, so small blocks are slower per row. Computing
/// logits twice costs more time than this memory is worth: it has the size of the head's gradient.
pub fn max_loss_logits(out: usize, width: usize) -> usize {
    MIN_LOGITS.max(out * width.min(MAX_ROWS))
}

/// Splits rows into blocks of at most `logits` logits, with `out` columns per row. A block holds whole samples, or a
/// multiple of 256 rows of a sample. If 256 rows have more logits, the columns must be split too; the blocks are then
/// those of 4,096 columns.
pub(crate) fn of_rows(samples: &Samples, logits: usize, out: usize) -> Vec<(Range<usize>, Samples)> {
    let columns = if 256 * out <= logits { out } else { out.min(4096) };
    let max_rows = (logits / columns / 256 * 256).max(256);
    let mut blocks: Vec<(Range<usize>, Vec<usize>)> = Vec::new();
    for sample in samples.ranges() {
        for start in sample.clone().step_by(max_rows) {
            let piece = start..sample.end.min(start + max_rows);
            match blocks.last_mut() {
                Some((rows, lengths)) if rows.len() + piece.len() <= max_rows => {
                    rows.end = piece.end;
                    lengths.push(piece.len());
                }
                _ => blocks.push((piece.clone(), vec![piece.len()])),
            }
        }
    }
    blocks.into_iter().map(|(rows, lengths)| (rows, Samples::of_lengths(lengths))).collect()
}

/// The columns `0..out` in chunks of at most `max_columns`, rounded down to a multiple of 256 unless one chunk is
/// enough.
pub(crate) fn of_columns(out: usize, max_columns: usize) -> impl Iterator<Item = Range<usize>> {
    let step = if out <= max_columns { out } else { (max_columns / 256 * 256).max(256) };
    (0..out).step_by(step).map(move |start| start..out.min(start + step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_chunk_of_a_sum_is_split_and_the_logits_stay_within_their_bound() {
        let samples = Samples::of_lengths([3, 700, 0, 256, 2000, 1]);
        for out in [1, 300, 4095, 16_384, 16_385, 50_000, 1 << 19] {
            let (max_logits, mut next) = (1 << 22, 0);
            for (block, inside) in of_rows(&samples, max_logits, out) {
                assert_eq!((block.start, inside.rows()), (next, block.len()));
                next = block.end;
                for sample in inside.ranges() {
                    let (start, end) = (block.start + sample.start, block.start + sample.end);
                    let of = samples.ranges().find(|s| s.start <= start && end <= s.end && !s.is_empty());
                    let of = of.expect("the rows of one sample");
                    assert!((start - of.start).is_multiple_of(256), "{out}: {start} in {of:?}");
                    assert!(end == of.end || (end - of.start).is_multiple_of(256), "{out}: {end} in {of:?}");
                }
                let whole = 256 * out <= max_logits;
                let mut column = 0;
                for columns in of_columns(out, if whole { out } else { max_logits / block.len() }) {
                    assert_eq!(columns.start, column);
                    column = columns.end;
                    assert!(columns.end == out || columns.len().is_multiple_of(256));
                    assert!(block.len() * columns.len() <= max_logits, "{out}: {block:?} x {columns:?}");
                }
                assert_eq!(column, out);
            }
            assert_eq!(next, samples.rows());
        }
    }
}
