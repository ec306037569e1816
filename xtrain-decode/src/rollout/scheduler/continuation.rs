//! Continuation: finished sequences that are kept, with their cached rows as long as no other sequence needs the room.
use std::collections::BTreeMap;

use super::{Scheduler, SeqSlot};
use crate::rollout::options::Continuation;
use crate::rollout::request::Request;
use crate::rollout::sequence::{End, Sequence};

/// The finished sequences that can be continued, by their index in the order of submission.
#[derive(Debug, Default)]
pub(super) struct HeldSequences {
    sequences: BTreeMap<usize, Held>,
}

#[derive(Debug)]
struct Held {
    sequence: Sequence,
    /// Its slot, with its cached rows. `None`: another sequence needed the room, and a continuation computes the rows
    /// again.
    slot: Option<u32>,
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
        self.sequences.values().any(|held| held.slot.is_some())
    }
}

impl Scheduler<'_> {
    /// Whether a sequence that has ended keeps its slot: it can be continued, and no sequence waits for a slot.
    pub(super) fn holds_rows(&self, sequence: &Sequence) -> bool {
        let finished = matches!(sequence.end, Some(End::Finished(_)));
        finished && self.options.continuation == Continuation::On && self.waiting.is_empty()
    }

    /// The request that continues the held sequence of this index with `tokens`. `None`: it is not held.
    pub(in crate::rollout) fn continuation(
        &self,
        index: usize,
        tokens: &[u32],
        max_new: usize,
    ) -> Option<Request> {
        self.held.sequences.get(&index).map(|held| held.sequence.continuation(tokens, max_new))
    }

    /// Continues a held sequence with its checked continuation. Returns the new index.
    pub(in crate::rollout) fn extend(&mut self, index: usize, request: Request) -> usize {
        let Held { sequence, slot } = self.held.sequences.remove(&index).expect("the sequence is held");
        let new = self.submitted;
        self.submitted += 1;
        let mut next = sequence.continued(request, new, self.cfg);
        match slot {
            Some(_) => {
                self.counters.continued_rows += next.num_computed as u64;
                self.running.push(next);
            }
            None => {
                next.num_computed = 0;
                self.waiting.push_back(next);
            }
        }
        new
    }

    /// Drops all held sequences and frees their rows.
    pub(in crate::rollout) fn release_finished(&mut self) {
        while self.evict_held() {}
        self.held.sequences.clear();
    }

    /// Whether a slot is free. If sequences wait and none is, the rows of a held sequence are freed.
    pub(super) fn has_free_slot(&mut self) -> bool {
        if self.free_slots.is_empty() && !self.waiting.is_empty() {
            self.evict_held();
        }
        !self.free_slots.is_empty()
    }

    /// Frees the rows of the held sequence that was submitted last. Returns `false` if none holds rows.
    pub(super) fn evict_held(&mut self) -> bool {
        let mut held = self.held.sequences.iter().rev();
        let Some(index) = held.find_map(|(index, held)| held.slot.map(|_| *index)) else { return false };
        let Held { mut sequence, slot } = self.held.sequences.remove(&index).expect("the index was found");
        self.insert_prefix(&sequence);
        self.free_cached(sequence.slot);
        self.free_slots.extend(slot.map(|number| SeqSlot { number, prompt_of: None }));
        sequence.num_computed = 0;
        self.held.insert(sequence, None);
        true
    }
}
