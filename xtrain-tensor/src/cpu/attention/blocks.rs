//! Divides the rows of attention's forward pass: which ones are computed together, and in which chunks of keys.
//!
//! The rows of a block belong to one sequence, or to sequences whose first slots are the same, such as the completions
//! of one prompt. A chunk that they share is read once for all of them.
use std::ops::Range;

use super::rows::{CHUNK, union, within};
use crate::cpu::scratch::{Buffer, scratch};
use crate::faults::{self, Fault};
use crate::operands::{AttnMask, Heads};

/// Maximum query vectors (rows times heads of the group) per block.
const MAX_BLOCK: usize = 256;

/// Maximum query vectors per kv head for which keys are read in place: the rows of an AMX tile.
const MAX_FEW: usize = 16;

/// The first row of a block and the one after its last.
pub(super) type Block = [usize; 2];
scratch!(Block, [0; 2]);

/// Where a row leaves its block: the first chunk that is computed only together with rows of the same sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    /// 0: the row is never computed in the block; `usize::MAX`: it never leaves the block.
    pub(super) chunk: usize,
    /// The index of the row among the continued rows of the pass.
    pub(super) index: usize,
}
scratch!(Cut, Cut::NONE);

impl Cut {
    const NONE: Cut = Cut { chunk: usize::MAX, index: 0 };

    /// Whether the row is continued: it is computed in its block first, then without it.
    pub(super) fn continues(self) -> bool {
        (1..usize::MAX).contains(&self.chunk)
    }
}

/// How the rows of a pass are divided.
pub(super) struct Plan {
    /// Blocks of rows, computed up to the cut of each row.
    pub(super) blocks: Buffer<Block>,
    /// Runs of a few rows of one sequence, computed from their cut on.
    pub(super) singles: Buffer<Block>,
    /// The cut of each row.
    pub(super) cuts: Buffer<Cut>,
    /// The number of continued rows.
    pub(super) continued: usize,
}

/// The limits of a plan.
pub(super) struct Limits {
    /// Maximum rows of a block.
    pub(super) rows: usize,
    /// Another sequence joins a block only while the block has fewer rows than this, so that every thread has work.
    pub(super) join_below: usize,
    /// Maximum rows of a sequence that leave a block. 0: no rows do.
    pub(super) few: usize,
}

impl Limits {
    /// The limits for `rows` rows on `threads` threads. `tiles`: attention is computed in AMX tiles.
    pub(super) fn new(heads: Heads, rows: usize, threads: usize, tiles: bool) -> Limits {
        let group = heads.nh / heads.nkv;
        Limits {
            rows: (MAX_BLOCK / group).max(1),
            join_below: rows.div_ceil(threads),
            few: if tiles { MAX_FEW / group } else { 0 },
        }
    }
}

impl Plan {
    pub(super) fn new(mask: &AttnMask<'_>, limits: &Limits) -> Plan {
        let mut plan = Plan {
            blocks: blocks(mask, limits),
            singles: Buffer::new(if limits.few == 0 { 0 } else { mask.rows() }),
            cuts: Buffer::new(mask.rows()),
            continued: 0,
        };
        plan.cuts.fill(Cut::NONE);
        plan.cut(mask, limits.few);
        plan
    }

    /// Cuts the rows of sequences with at most `few` rows in their block.
    fn cut(&mut self, mask: &AttnMask<'_>, few: usize) {
        let Plan { blocks, singles, cuts, continued } = self;
        let (mut kept, mut single) = (0, 0);
        for i in 0..blocks.len() {
            let block = blocks[i];
            let rows = block[0]..block[1];
            let cuts = &mut cuts[rows.clone()];
            cut_block(mask, &rows, few, cuts);
            for seq in sequences(mask, &rows).filter(|seq| cuts[seq.start - rows.start].chunk < usize::MAX) {
                singles[single] = [seq.start, seq.end];
                single += 1;
            }
            for cut in cuts.iter_mut().filter(|cut| cut.continues()) {
                cut.index = *continued;
                *continued += 1;
            }
            if cuts.iter().any(|cut| cut.chunk > 0) {
                blocks[kept] = block;
                kept += 1;
            }
        }
        blocks.truncate(kept);
        singles.truncate(single);
    }
}

/// Groups consecutive rows whose sequences start with the same slots.
fn blocks(mask: &AttnMask<'_>, limits: &Limits) -> Buffer<Block> {
    let (mut blocks, mut len) = (Buffer::<Block>::new(mask.rows()), 0);
    for n in 0..mask.rows() {
        let joins = |[start, end]: Block| {
            end - start < limits.rows
                && (mask.seq[n] == mask.seq[n - 1]
                    || end - start < limits.join_below && share_first_chunk(mask, n - 1, n))
        };
        match blocks[..len].last_mut() {
            Some(block) if joins(*block) => block[1] = n + 1,
            _ => {
                blocks[len] = [n, n + 1];
                len += 1;
            }
        }
    }
    blocks.truncate(len);
    blocks
}

/// Whether the first chunk visible to either of two rows is in the same slots for both.
fn share_first_chunk(mask: &AttnMask<'_>, a: usize, b: usize) -> bool {
    let first = union(mask.keys(a), mask.keys(b)).start / CHUNK * CHUNK;
    mask.slots.same(mask.seq[a], mask.seq[b], first..first + CHUNK)
}

/// Sets the cuts of a block. A sequence with at most `few` rows is cut at the first chunk that no more than `few` rows of
/// the block share, its own rows included.
fn cut_block(mask: &AttnMask<'_>, rows: &Range<usize>, few: usize, cuts: &mut [Cut]) {
    let chunks = chunks(mask, rows);
    for c in chunks.clone() {
        let cut = if c == chunks.start { 0 } else { c };
        let (mut shared, mut uncut) = (0..0, false);
        for seq in sequences(mask, rows) {
            let cuts = &mut cuts[seq.start - rows.start..seq.end - rows.start];
            let ended = seq.clone().all(|row| mask.keys(row).end <= c * CHUNK);
            if cuts[0].chunk <= c || ended || !are_few(mask, &seq, few) {
                continue;
            }
            while shared.end <= seq.start {
                shared = part(mask, shared.end.max(rows.start)..rows.end, c);
            }
            // a sequence whose rows are in two parts leaves the block with all of them
            match shared.len() <= few || shared.end < seq.end {
                true => cuts.fill(Cut { chunk: cut, index: 0 }),
                false => uncut = true,
            }
        }
        if !uncut {
            break;
        }
    }
}

/// The chunks that are visible to any of `rows`.
#[inline(always)]
pub(super) fn chunks(mask: &AttnMask<'_>, rows: &Range<usize>) -> Range<usize> {
    let all = rows.clone().fold(0..0, |all, row| union(all, mask.keys(row)));
    all.start / CHUNK..all.end.div_ceil(CHUNK)
}

/// The longest run of rows from the first of `rows` on whose visible keys of chunk `c` are in the same slots.
#[inline(always)]
pub(super) fn part(mask: &AttnMask<'_>, rows: Range<usize>, c: usize) -> Range<usize> {
    let first = rows.start;
    let mut visible = within(&mask.keys(first), c);
    let mut end = first + 1;
    while end < rows.end {
        let next = within(&mask.keys(end), c);
        let apart = next.start.max(visible.start) > next.end.min(visible.end);
        if apart && !visible.is_empty() && !next.is_empty() {
            break; // the slots in between belong to neither sequence and hold unspecified values
        }
        let both = union(visible, next);
        let positions = c * CHUNK + both.start..c * CHUNK + both.end;
        if !mask.slots.same(mask.seq[first], mask.seq[end], positions) {
            break;
        }
        (visible, end) = (both, end + 1);
    }
    first..end
}

/// Splits `rows` where the sequence changes.
fn sequences<'a>(
    mask: &'a AttnMask<'_>,
    rows: &Range<usize>,
) -> impl Iterator<Item = Range<usize>> + use<'a> {
    let mut rest = rows.clone();
    std::iter::from_fn(move || {
        let first = rest.next()?;
        while !rest.is_empty() && mask.seq[rest.start] == mask.seq[first] {
            rest.start += 1;
        }
        Some(first..rest.start)
    })
}

/// Whether `rows`, of one sequence, are at most `few` and see all positions from their first to their last key.
fn are_few(mask: &AttnMask<'_>, rows: &Range<usize>, few: usize) -> bool {
    let mut seen = mask.keys(rows.start);
    // slots between the windows of two rows hold unspecified values
    rows.len() <= few
        && rows.clone().all(|row| {
            let keys = mask.keys(row);
            let apart = keys.start > seen.end || keys.end < seen.start;
            seen = union(seen.clone(), keys);
            !apart || faults::on(Fault::GapOfWindowsRead)
        })
}
