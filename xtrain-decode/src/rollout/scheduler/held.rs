//! Finished sequences that can be continued, with their cached rows as long as no other sequence needs the room.
use std::collections::BTreeMap;

use crate::rollout::sequence::Sequence;

/// The finished sequences that can be continued, by their index in the order of submission.
#[derive(Debug, Default)]
pub(super) struct HeldSequences {
    sequences: BTreeMap<usize, Held>,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) sequence: Sequence,
    /// Its slot, with its cached rows. `None`: another sequence needed the room, and a continuation computes the rows
    /// again.
    pub(super) slot: Option<u32>,
}

impl HeldSequences {
    /// Adds a finished sequence. `slot`: the slot that it keeps.
    pub(super) fn insert(&mut self, mut sequence: Sequence, slot: Option<u32>) {
        if slot.is_none() {
            sequence.num_computed = 0;
        }
        self.sequences.insert(sequence.index, Held { sequence, slot });
    }

    /// At least one sequence has a slot.
    pub(super) fn holds_rows(&self) -> bool {
        self.last_with_slot().is_some()
    }

    /// The sequences that have a slot.
    pub(super) fn with_rows(&self) -> impl Iterator<Item = &Sequence> + Clone {
        self.sequences.values().filter(|held| held.slot.is_some()).map(|held| &held.sequence)
    }

    /// The sequence of this index. `None`: it is not held.
    pub(super) fn get(&self, index: usize) -> Option<&Sequence> {
        self.sequences.get(&index).map(|held| &held.sequence)
    }

    /// Removes the sequence of this index. `None`: it is not held.
    pub(super) fn remove(&mut self, index: usize) -> Option<Held> {
        self.sequences.remove(&index)
    }

    /// The index of the sequence that was submitted last among those that have a slot.
    pub(super) fn last_with_slot(&self) -> Option<usize> {
        let mut sequences = self.sequences.iter().rev();
        sequences.find_map(|(index, held)| held.slot.map(|_| *index))
    }

    /// Removes all sequences. None of them has a slot.
    pub(super) fn clear(&mut self) {
        self.sequences.clear();
    }
}
