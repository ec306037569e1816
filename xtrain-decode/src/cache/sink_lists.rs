//! What the rows of a pass over a sinks cache attend to: lists of positions.
use std::collections::BTreeMap;
use std::ops::Range;

use xtrain_model::{RowPlaces, Rows};
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{SlotRange, Slots};

use super::ledger::Ledger;

/// The slots of one sequence: those of the sinks, then a ring for the window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ring {
    pub(super) sinks: usize,
    pub(super) window: usize,
}

impl Ring {
    pub(super) fn slots(self) -> usize {
        self.sinks + self.window
    }

    /// The slot of a position.
    pub(super) fn slot(self, pos: usize) -> usize {
        if faults::on(Fault::SinkOverwritten) {
            return pos % self.slots();
        }
        if pos < self.sinks { pos } else { self.sinks + (pos - self.sinks) % self.window }
    }

    /// The list of the row at `pos`: the sinks, then the window.
    fn list(self, pos: usize) -> [Range<usize>; 2] {
        [0..self.sinks.min(pos + 1), self.window_start(pos)..pos + 1]
    }

    /// The first position after the sinks in the list of the row at `pos`.
    pub(super) fn window_start(self, pos: usize) -> usize {
        let more = usize::from(faults::on(Fault::SinksWindowOneTooMany));
        (pos + 1).saturating_sub(self.window + more).max(self.sinks)
    }

    /// The slots of `positions` as runs: the first slot and the number of slots.
    fn runs(self, positions: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
        let mut at = positions.start;
        std::iter::from_fn(move || {
            let slot = self.slot(at);
            let edge = if slot < self.sinks { self.sinks } else { self.slots() };
            let len = (edge - slot).min(positions.end.saturating_sub(at));
            at += len;
            (len > 0).then_some((slot, len))
        })
    }
}

/// The lists of a pass, one after another in the rows of one tensor.
#[derive(Debug)]
pub(super) struct Lists {
    /// From the slots of the cache to the rows of the tensor.
    pub(super) held: Vec<SlotRange>,
    /// From the rows of the pass to the rows of the tensor.
    pub(super) new: Vec<SlotRange>,
    /// The place of each row of the tensor in its list.
    pub(super) positions: Vec<u32>,
    /// The first row of each list. Those of the sequences come first.
    pub(super) slots: Slots,
    /// The list of each row of the pass.
    seq: Vec<u32>,
    /// Its place in the list: the last one for a list of its own.
    pub(super) pos: Vec<u32>,
}

/// The rows of one sequence in a pass.
struct NewRows<'a> {
    seq: u32,
    /// Number of positions that the cache holds.
    held: usize,
    /// The rows of the pass at the positions from `held` on.
    rows: &'a [u32],
}

impl Lists {
    /// No rows.
    pub(super) fn none() -> Lists {
        let slots = Slots::Runs { base: Vec::new() };
        Lists {
            held: Vec::new(),
            new: Vec::new(),
            positions: Vec::new(),
            slots,
            seq: Vec::new(),
            pos: Vec::new(),
        }
    }

    /// The lists of `rows`, which have entered `ledger`. Rows whose lists are the beginning of their sequence share
    /// one.
    pub(super) fn of(rows: &Rows, ring: Ring, ledger: &Ledger) -> Lists {
        let mut rows_of: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (row, &seq) in rows.seq.iter().enumerate() {
            rows_of.entry(seq).or_default().push(row as u32);
        }
        let mut base = vec![0; ledger.sequences()];
        let (seq, pos) = (vec![0; rows.len()], vec![0; rows.len()]);
        let mut lists = Lists { seq, pos, ..Lists::none() };
        for (&seq, own) in &rows_of {
            let held = ledger.len(seq);
            let new = NewRows { seq, held, rows: own };
            let first = lists.len();
            base[seq as usize] = first;
            if held < ring.slots() {
                lists.push(ring, &new, 0..ring.slots().min(held + own.len()), first);
            }
            for (&row, pos) in own.iter().zip(held..) {
                let mut place = (seq, pos);
                if pos >= ring.slots() {
                    let (list, first) = (base.len() as u32, lists.len());
                    base.push(first);
                    ring.list(pos).into_iter().for_each(|part| lists.push(ring, &new, part, first));
                    place = (list, lists.len() - first - 1);
                }
                (lists.seq[row as usize], lists.pos[row as usize]) = (place.0, place.1 as u32);
            }
        }
        lists.slots = Slots::Runs { base };
        lists
    }

    /// Number of rows of the tensor.
    pub(super) fn len(&self) -> usize {
        self.positions.len()
    }

    /// Where the rows of the pass are in the lists.
    pub(super) fn places(&self) -> RowPlaces<'_> {
        RowPlaces { seq: &self.seq, pos: &self.pos }
    }

    /// Appends `positions` of a sequence to the list that begins at row `first`.
    fn push(&mut self, ring: Ring, of: &NewRows<'_>, positions: Range<usize>, first: usize) {
        let mut to = self.len();
        let held = positions.start..positions.end.min(of.held);
        for (slot, len) in ring.runs(held) {
            self.held.push(SlotRange { from: of.seq as usize * ring.slots() + slot, to, len });
            to += len;
        }
        for &row in &of.rows[positions.start.max(of.held) - of.held..positions.end.max(of.held) - of.held] {
            let from = row as usize;
            match self.new.last_mut().filter(|last| last.from + last.len == from && last.to + last.len == to)
            {
                Some(last) => last.len += 1,
                None => self.new.push(SlotRange { from, to, len: 1 }),
            }
            to += 1;
        }
        let place = |(at, pos): (usize, usize)| {
            let in_text = faults::on(Fault::SinksRotatedByText);
            if in_text { pos as u32 } else { at as u32 }
        };
        let places = self.len() - first..to - first;
        self.positions.extend(places.zip(positions).map(place));
    }
}
