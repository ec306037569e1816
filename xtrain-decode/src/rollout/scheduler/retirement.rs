//! Retirement: sequences that have ended leave, and their slots become free.
use super::{Scheduler, SeqSlot};
use crate::rollout::completion::FinishReason;
use crate::rollout::options::{Continuation, PrefixCaching};
use crate::rollout::sequence::{End, Sequence};

impl Scheduler {
    /// Ends a running or waiting sequence. Returns `false` if there is none of this index.
    pub(in crate::rollout) fn stop(&mut self, index: usize) -> bool {
        if let Some(sequence) = self.waiting.remove(index) {
            self.finish(sequence, FinishReason::Stop, None);
        } else if let Some(at) = self.running.iter().position(|s| s.index == index) {
            self.release_followers(at);
            self.running[at].end = Some(End::Finished(FinishReason::Stop));
        } else {
            return false;
        }
        self.retire();
        true
    }

    /// Removes the sequences that have ended and frees their slots.
    pub(in crate::rollout) fn retire(&mut self) {
        let ended: Vec<Sequence> = self.running.extract_if(.., |s| s.end.is_some()).collect();
        for sequence in ended {
            self.admission_blocked = false;
            let slot = self.holds_rows(&sequence).then_some(sequence.slot);
            if slot.is_none() {
                self.release_slot(&sequence);
            }
            if let Some(End::Finished(reason)) = sequence.end {
                self.finished_lengths.record(sequence.new_tokens(), reason);
                self.finish(sequence, reason, slot);
            }
        }
    }

    /// Frees the slot of a sequence that has ended. The cache keeps its prompt until the next sequences are admitted,
    /// if the first of them needs it.
    fn release_slot(&mut self, sequence: &Sequence) {
        let next = self.waiting.front().filter(|s| s.group == sequence.group && s.is_fresh());
        let prompt_of = next.filter(|_| sequence.holds_prompt()).map(|s| s.group);
        self.insert_prefix(sequence);
        if prompt_of.is_none() {
            self.free_cached(sequence.slot);
        }
        self.free_slots.push(SeqSlot { number: sequence.slot, prompt_of });
    }

    /// Adds the completion of a sequence. If it has no token, it no longer needs the prompt of its group. `slot`: the
    /// slot that it keeps.
    fn finish(&mut self, mut sequence: Sequence, reason: FinishReason, slot: Option<u32>) {
        self.discard_offloaded(&mut sequence);
        if sequence.is_fresh() {
            self.groups.leave(sequence.group);
        }
        self.finished.push(sequence.completion(reason));
        if self.options.continuation == Continuation::On {
            self.held.insert(sequence, slot);
        }
    }

    /// Keeps the rows of a sequence for later ones that begin with the same tokens.
    pub(super) fn insert_prefix(&mut self, sequence: &Sequence) {
        if let (Some(cache), PrefixCaching::On) = (&mut self.cache, self.options.prefix_caching) {
            cache.insert_prefix(sequence.slot, &sequence.tokens()[..sequence.num_computed]);
        }
    }

    pub(super) fn free_cached(&mut self, slot: u32) {
        if let Some(cache) = &mut self.cache {
            cache.free(slot);
        }
    }
}
