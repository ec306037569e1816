//! The visible keys of each row of an attention, and their slots in the pool.
use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::faults::{self, Fault};

/// The slot of position `pos` of sequence `seq` in a pool of keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slots {
    /// Each sequence is contiguous: slot `base[seq] + pos`. Used by training batches and contiguous caches.
    Runs {
        /// The first slot of each sequence.
        base: Vec<usize>,
    },
    /// Each sequence is in KV pages: slot `table[seq][pos / page] * page + pos % page`.
    Pages {
        /// Positions per page.
        page: usize,
        /// The pages of each sequence, in the order of its positions.
        table: Vec<Vec<u32>>,
    },
}

impl Slots {
    /// The slot of a position.
    #[inline]
    pub fn slot(&self, seq: u32, pos: usize) -> usize {
        match self {
            Slots::Runs { base } => base[seq as usize] + pos,
            Slots::Pages { page, table } => table[seq as usize][pos / page] as usize * page + pos % page,
        }
    }

    /// The slot of a position. `None`: the sequence has no slot for it.
    #[inline]
    pub(crate) fn get(&self, seq: u32, pos: usize) -> Option<usize> {
        match self {
            Slots::Runs { base } => Some(base.get(seq as usize)? + pos),
            Slots::Pages { page, table } => {
                Some(*table.get(seq as usize)?.get(pos / page)? as usize * page + pos % page)
            }
        }
    }

    /// Whether two sequences share their slots at all positions of `range`.
    #[inline]
    pub(crate) fn same(&self, a: u32, b: u32, range: Range<usize>) -> bool {
        if a == b {
            return true;
        }
        match self {
            Slots::Runs { base } => base[a as usize] == base[b as usize],
            Slots::Pages { page, table } => {
                let mut pages = range.start / page..range.end.div_ceil(*page);
                if faults::on(Fault::OnlyFirstPageCompared) {
                    pages = 0..1;
                }
                let of = |seq: u32| table[seq as usize].get(pages.clone());
                of(a).is_some() && of(a) == of(b)
            }
        }
    }

    /// The number of positions from `pos` on that are in consecutive slots, at least 1.
    #[inline]
    pub fn run_length(&self, pos: usize) -> usize {
        match self {
            Slots::Runs { .. } => usize::MAX,
            Slots::Pages { page, .. } => page - pos % page,
        }
    }
}

/// `len` rows, read from row `from` on and written from row `to` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRange {
    /// The first row read.
    pub from: usize,
    /// The first row written.
    pub to: usize,
    /// The number of rows.
    pub len: usize,
}

/// The rows of an attention and their visible keys. Row `n` is at position `pos[n]` of sequence `seq[n]`. Its visible
/// keys are at positions `0..=pos[n]` of that sequence, or at the last `window` of them.
#[derive(Debug, Clone, Copy)]
pub struct AttnMask<'a> {
    /// The sequence of each row.
    pub seq: &'a [u32],
    /// The position of each row in its sequence.
    pub pos: &'a [u32],
    /// The slots of keys and values.
    pub slots: &'a Slots,
    /// Sliding-window size, including the current position. `None`: full attention.
    pub window: Option<usize>,
}

impl AttnMask<'_> {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.seq.len()
    }

    /// The visible positions of row `n`.
    #[inline]
    pub fn keys(&self, n: usize) -> Range<usize> {
        let own = usize::from(!faults::on(Fault::MaskOffByOne) || self.pos[n] == 0);
        let end = self.pos[n] as usize + own;
        let more = usize::from(self.window.is_some() && faults::on(Fault::WindowOffByOne));
        end - self.window.map_or(end, |w| w + more).min(end)..end
    }

    /// One past the last position at which `pos` is visible, in a sequence of `len` positions.
    #[inline]
    pub(crate) fn visible_until(&self, pos: usize, len: usize) -> usize {
        let fewer = usize::from(faults::on(Fault::LastRowOfWindowWithoutGradient));
        self.window.map_or(len, |w| len.min(pos.saturating_add(w - fewer)))
    }

    /// The rows of each sequence, ordered by position.
    pub(crate) fn rows_by_sequence(&self) -> Vec<(u32, Vec<usize>)> {
        let mut rows: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut from = 0;
        for run in self.seq.chunk_by(|a, b| a == b) {
            rows.entry(run[0]).or_default().extend(from..from + run.len());
            from += run.len();
        }
        for rows in rows.values_mut() {
            rows.sort_by_key(|&n| self.pos[n]); // linear if the rows are already in order
        }
        rows.into_iter().collect()
    }

    /// Whether a sequence has positions whose keys belong to rows of another sequence.
    pub(crate) fn shares_prefixes(&self, sequences: &[(u32, Vec<usize>)]) -> bool {
        sequences.iter().any(|(_, rows)| self.pos[rows[0]] > 0)
    }

    /// Returns an error if a row has a visible key outside a pool of `n_slots` slots.
    pub(crate) fn check(&self, op: &'static str, rows: usize, n_slots: usize) -> Result<()> {
        if self.seq.len() != rows || self.pos.len() != rows {
            let got = vec![vec![rows], vec![self.seq.len()], vec![self.pos.len()]];
            return Err(Error::Shape { op, want: "one sequence and one position per row", got });
        }
        if self.window == Some(0) {
            return Err(Error::Argument { op, want: "a window of at least 1", got: "0".into() });
        }
        for n in 0..rows {
            self.check_row(op, n, n_slots)?;
        }
        Ok(())
    }

    fn check_row(&self, op: &'static str, n: usize, n_slots: usize) -> Result<()> {
        let (seq, pos) = (self.seq[n] as usize, self.pos[n] as usize);
        let bad = |what, got: usize, bound: usize| {
            Err(Error::Index { op, what, at: n, got: got as u64, bound: bound as u64 })
        };
        match self.slots {
            Slots::Runs { base } => match base.get(seq) {
                None => bad("sequence", seq, base.len()),
                Some(b) => match b.checked_add(pos) {
                    Some(slot) if slot < n_slots => Ok(()),
                    slot => bad("slot", slot.unwrap_or(usize::MAX), n_slots),
                },
            },
            Slots::Pages { page, table } => {
                let Some(pages) = table.get(seq) else { return bad("sequence", seq, table.len()) };
                if *page == 0 || pos / page >= pages.len() {
                    return bad("position", pos, pages.len().saturating_mul(*page));
                }
                let needed = &pages[self.keys(n).start / page..=pos / page];
                match needed.iter().find(|&&p| (p as usize + 1).saturating_mul(*page) > n_slots) {
                    Some(&p) => bad("page", p as usize, n_slots / page),
                    None => Ok(()),
                }
            }
        }
    }
}
