//! Continuation: finished sequences are held, continued, and give their room to other sequences.
use super::held::Held;
use super::queue::WaitingQueue;
use super::{Scheduler, SeqSlot};
use crate::rollout::options::Continuation;
use crate::rollout::request::Request;
use crate::rollout::sequence::{End, Sequence};

impl Scheduler {
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
        self.held.get(index).map(|sequence| sequence.continuation(tokens, max_new))
    }

    /// Continues a held sequence with its checked continuation. Returns the new index.
    pub(in crate::rollout) fn extend(&mut self, index: usize, request: Request) -> usize {
        let Held { sequence, slot } = self.held.remove(index).expect("the sequence is held");
        let new = self.submitted;
        self.submitted += 1;
        let mut next = sequence.continued(request, new, &self.cfg);
        next.rank = WaitingQueue::rank(&self.options, self.steps, 0);
        self.counters.continued_rows += next.num_computed as u64;
        if slot.is_some() {
            self.running.push(next);
        } else {
            self.waiting.insert(next);
        }
        new
    }

    /// Drops all held sequences and frees their rows.
    pub(in crate::rollout) fn release_finished(&mut self) {
        while self.evict_held() {}
        self.held.clear();
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
        let Some(index) = self.held.last_with_slot() else { return false };
        let Held { sequence, slot } = self.held.remove(index).expect("the index was found");
        self.insert_prefix(&sequence);
        self.free_cached(sequence.slot);
        self.free_slots.extend(slot.map(|number| SeqSlot { number, prompt_of: None }));
        self.held.insert(sequence, None);
        true
    }
}
