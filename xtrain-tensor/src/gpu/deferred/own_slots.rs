//! Whether the rows of an attention see no new keys but their own: a walk over the pages of every row. Each layer of a pass
//! checks the same rows, so the last result of each thread is cached with its operands.
use std::cell::RefCell;

use crate::faults::{self, Fault};
use crate::operands::{AttnMask, Slots};

/// A cached result and its operands.
struct Cached {
    seq: Vec<u32>,
    pos: Vec<u32>,
    slots: Slots,
    window: Option<usize>,
    written: Vec<u32>,
    own_only: bool,
}

thread_local! {
    static LAST: RefCell<Option<Cached>> = const { RefCell::new(None) };
}

impl Cached {
    fn is_of(&self, mask: &AttnMask<'_>, written: &[u32]) -> bool {
        let rows = self.written == written && self.pos == mask.pos && self.seq == mask.seq;
        let stale = faults::on(Fault::OwnSlotsOfOtherPages);
        rows && self.window == mask.window && (stale || self.slots == *mask.slots)
    }
}

/// Whether row `n` writes the slot of its own position, `written[n]`, and sees no other one of `written`.
pub(super) fn sees_own_slot_only(mask: &AttnMask<'_>, written: &[u32]) -> bool {
    // other faults change the result
    if faults::active().is_some_and(|fault| fault != Fault::OwnSlotsOfOtherPages) {
        return walk(mask, written);
    }
    LAST.with_borrow_mut(|last| match last {
        Some(cached) if cached.is_of(mask, written) => cached.own_only,
        _ => {
            let own_only = walk(mask, written);
            *last = Some(Cached {
                seq: mask.seq.to_vec(),
                pos: mask.pos.to_vec(),
                slots: mask.slots.clone(),
                window: mask.window,
                written: written.to_vec(),
                own_only,
            });
            own_only
        }
    })
}

/// [`sees_own_slot_only`], computed.
fn walk(mask: &AttnMask<'_>, written: &[u32]) -> bool {
    #[cfg(test)]
    tests::WALKS.set(tests::WALKS.get() + 1);
    let mut sorted = written.to_vec();
    sorted.sort_unstable();
    let below = |slot: usize| sorted.partition_point(|&w| (w as usize) < slot);
    let row = |n: usize| {
        let (seq, keys) = (mask.seq[n], mask.keys(n));
        let (mut at, mut seen) = (keys.start, 0);
        while at < keys.end {
            let (first, len) = (mask.slots.slot(seq, at), mask.slots.run_length(at).min(keys.end - at));
            seen += below(first + len) - below(first);
            at += len;
        }
        mask.slots.slot(seq, mask.pos[n] as usize) == written[n] as usize
            && (seen == 1 || faults::on(Fault::NewKeysOfOthersUnseen))
    };
    (0..mask.rows()).all(row)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Number of walks of this thread.
        pub(super) static WALKS: Cell<usize> = const { Cell::new(0) };
    }

    /// Two rows at positions 5 and 6 of their sequences, in pages of 4.
    fn pages(table: [[u32; 2]; 2]) -> Slots {
        Slots::Pages { page: 4, table: table.map(Vec::from).to_vec() }
    }

    /// Computes each of several passes twice, most of which differ from the previous one in one operand. Returns the
    /// answers and those of the walk.
    fn asked() -> [Vec<bool>; 2] {
        let mut answers = [Vec::new(), Vec::new()];
        let mut ask = |seq: [u32; 2], pos: [u32; 2], slots: &Slots, window, written: [u32; 2]| {
            let mask = AttnMask { seq: &seq, pos: &pos, slots, window };
            answers[0].extend((0..2).map(|_| sees_own_slot_only(&mask, &written)));
            answers[1].extend([walk(&mask, &written); 2]);
        };
        let (own, shared) = (pages([[0, 1], [2, 3]]), pages([[0, 1], [1, 3]]));
        let later = pages([[0, 3], [2, 1]]);
        ask([0, 1], [5, 6], &own, None, [5, 14]);
        ask([0, 1], [5, 6], &shared, None, [5, 14]);
        ask([0, 1], [5, 6], &shared, Some(2), [5, 14]);
        ask([0, 1], [5, 7], &shared, Some(2), [5, 14]);
        ask([0, 1], [5, 7], &shared, Some(2), [5, 15]);
        ask([0, 1], [5, 7], &later, Some(2), [5, 15]);
        ask([1, 0], [5, 7], &later, Some(2), [5, 15]);
        ask([0, 1], [5, 6], &own, None, [5, 14]);
        answers
    }

    #[test]
    fn the_kept_answer_is_that_of_the_same_rows_and_pages() {
        let [found, expected] = asked();
        assert_eq!(found, expected);
        let each: Vec<bool> = expected.chunks(2).map(|pass| pass[0]).collect();
        assert_eq!(each, [true, false, true, false, true, false, true, true]);
    }

    #[cfg(feature = "faults")]
    #[test]
    fn an_answer_for_other_pages_is_found() {
        let [found, expected] = faults::with(Fault::OwnSlotsOfOtherPages, asked);
        assert_ne!(found, expected);
    }

    #[test]
    fn the_answer_for_256_rows_is_kept_for_the_layers_of_a_pass() {
        let (rows, pages) = (256u32, 64u32);
        let table = (0..rows).map(|seq| (0..pages).map(|page| seq * pages + page).collect()).collect();
        let slots = Slots::Pages { page: 16, table };
        let (seq, pos): (Vec<u32>, Vec<u32>) = (0..rows).map(|seq| (seq, 16 * pages - 1)).unzip();
        let written: Vec<u32> = seq.iter().map(|seq| (seq + 1) * pages * 16 - 1).collect();
        let mask = AttnMask { seq: &seq, pos: &pos, slots: &slots, window: None };
        let timed = || {
            let start = std::time::Instant::now();
            assert!(sees_own_slot_only(&mask, &written));
            start.elapsed()
        };
        let before = WALKS.get();
        let (walk, kept) = (timed(), (0..5).map(|_| timed()).min().expect("five calls"));
        assert_eq!(WALKS.get() - before, 1, "walks for six layers");
        println!("256 rows of 1024 positions: {walk:?}, and {kept:?} in each later layer");
    }
}
