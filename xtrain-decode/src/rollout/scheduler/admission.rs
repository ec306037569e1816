//! Admission: waiting sequences get slots, and prompts that are in the cache already.
use xtrain_model::Error as ModelError;
use xtrain_tensor::faults::{self, Fault};

use super::{Scheduler, SeqSlot};
use crate::cache::Snapshot;
use crate::error::Result;
use crate::rollout::plan::ForkedSample;
use crate::rollout::sequence::Sequence;

/// Where a sequence gets the keys and values of its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PromptSource {
    Compute,
    /// The sequence forks from this slot, which holds the whole prompt and whose logits are known.
    Fork(u32),
    /// The sequence waits until another one has computed the prompt.
    Wait,
}

impl Scheduler {
    /// Gives free slots to waiting sequences, in their order. Those that fork their prompt have a first token due.
    pub(in crate::rollout) fn admit(&mut self) -> Result<()> {
        self.steps += 1;
        let mut result = Ok(());
        while (!self.admission_blocked || self.running.is_empty())
            && self.has_free_slot()
            && self.is_above_watermark()
        {
            let Some(sequence) = self.waiting.pop_front() else { break };
            result = result.and(self.start(sequence));
        }
        self.free_prompts();
        result
    }

    /// Frees the prompts that the cache keeps in free slots.
    pub(super) fn free_prompts(&mut self) {
        for at in 0..self.free_slots.len() {
            if self.free_slots[at].prompt_of.take().is_some() {
                self.free_cached(self.free_slots[at].number);
            }
        }
    }

    /// Allocates the pages that the waiting sequences need if none of them ends early, at most `max_bytes`. The full
    /// pages of a prompt are shared by its group.
    pub(in crate::rollout) fn reserve(&mut self, max_bytes: usize) -> Result<()> {
        let (Some(page), Some(cache)) = (self.options.kv.page(), &mut self.cache) else { return Ok(()) };
        let (mut pages, mut group) = (0, None);
        for sequence in self.waiting.iter() {
            let shared = sequence.prompt().len() / page;
            pages += sequence.required_len(&self.cfg).div_ceil(page) - shared;
            pages += if group == Some(sequence.group) { 0 } else { shared };
            group = Some(sequence.group);
        }
        Ok(cache.expect(pages.min(max_bytes / (page * cache.shape().bytes_per_token()).max(1)))?)
    }

    /// Gives `sequence` a free slot, and its prompt if another sequence has it. Prefers a slot that holds the prompt.
    fn start(&mut self, mut sequence: Sequence) -> Result<()> {
        let holds_prompt = |slot: &SeqSlot| sequence.is_fresh() && slot.prompt_of == Some(sequence.group);
        let at = self.free_slots.iter().position(holds_prompt).unwrap_or(self.free_slots.len() - 1);
        let slot = self.free_slots.remove(at);
        sequence.assign_slot(slot.number, &self.cfg);
        let source = self.prompt_source(&sequence, slot);
        sequence.waits_for_prompt = source == PromptSource::Wait;
        let keeps_slot = match source {
            PromptSource::Fork(from) => from == slot.number || faults::on(Fault::PromptOfOtherGroupKept),
            PromptSource::Compute | PromptSource::Wait => false,
        };
        if slot.prompt_of.is_some() && !keeps_slot {
            self.free_cached(slot.number);
        }
        if let PromptSource::Fork(from) = source {
            self.running.push(sequence);
            return self.fork_prompt(self.running.len() - 1, from);
        }
        let mut reused = Ok(());
        if source == PromptSource::Compute {
            reused = self.reuse_rows(&mut sequence).and_then(|()| self.restore_rows(&mut sequence));
        }
        self.running.push(sequence);
        reused
    }

    fn prompt_source(&self, sequence: &Sequence, slot: SeqSlot) -> PromptSource {
        let needs_prompt = sequence.is_fresh() || faults::on(Fault::PreemptedMemberForksAgain);
        if !needs_prompt || !self.groups.contains(sequence.group) {
            return PromptSource::Compute;
        }
        let has_logits = self.groups.logits(sequence.group).is_some();
        if has_logits && slot.prompt_of == Some(sequence.group) {
            return PromptSource::Fork(slot.number);
        }
        let mut others = self.running.iter().filter(|s| s.group == sequence.group);
        match others.clone().find(|s| s.holds_prompt()) {
            Some(holder) if has_logits => PromptSource::Fork(holder.slot),
            _ if others.any(|s| s.is_fresh() && !s.waits_for_prompt) => PromptSource::Wait,
            _ => PromptSource::Compute,
        }
    }

    /// Forks the prompt in slot `from` for the sequence at `at`, whose first token is then due. If there is no room
    /// for a copy, or a part of the prompt is overwritten, the sequence computes the prompt itself.
    fn fork_prompt(&mut self, at: usize, from: u32) -> Result<()> {
        let first_id = self.running[0].id;
        let sequence = &mut self.running[at];
        let (slot, len) = (sequence.slot, sequence.prompt().len());
        let cache = self.cache.as_mut().expect("without a cache there are no groups");
        sequence.waits_for_prompt = false;
        if !cache.can_rewind(from, len) {
            cache.free(slot);
            return Ok(());
        }
        let copied = if slot == from {
            cache.rewind(Snapshot { seq: slot, len })
        } else {
            cache.fork(from, slot, len)
        };
        match copied {
            Err(ModelError::CacheFull { .. }) => return Ok(()),
            copied => copied?,
        }
        sequence.num_computed = len;
        self.counters.forks += 1;
        let logits = self.groups.logits(sequence.group).expect("a prompt to fork from has its logits");
        self.forked.push(ForkedSample { running: at, spec: sequence.sample_spec(first_id, true), logits });
        Ok(())
    }

    /// The sequence at `at` follows the one that has just computed its prompt in slot `from`, or forks the prompt. Its
    /// first token is then due.
    fn share_prompt(&mut self, at: usize, from: u32) -> Result<()> {
        let holder = self.running.iter().position(|s| s.slot == from);
        if !holder.is_some_and(|holder| self.follow(at, holder)) {
            return self.fork_prompt(at, from);
        }
        let first_id = self.running[0].id;
        self.running[at].waits_for_prompt = false;
        let sequence = &self.running[at];
        let logits = self.groups.logits(sequence.group).expect("a prompt to fork from has its logits");
        self.forked.push(ForkedSample { running: at, spec: sequence.sample_spec(first_id, true), logits });
        Ok(())
    }

    /// Forks computed prompts for the sequences that wait for them; their first token is then due. If no sequence
    /// computes the prompt any more, a waiting sequence computes it itself.
    pub(in crate::rollout) fn fork_waiting(&mut self) -> Result<()> {
        let mut result = Ok(());
        for at in 0..self.running.len() {
            let sequence = &self.running[at];
            if !sequence.waits_for_prompt || sequence.end.is_some() {
                continue;
            }
            match self.prompt_source(sequence, SeqSlot { number: sequence.slot, prompt_of: None }) {
                PromptSource::Fork(from) => result = result.and(self.share_prompt(at, from)),
                PromptSource::Compute => self.running[at].waits_for_prompt = false,
                PromptSource::Wait => (),
            }
        }
        result
    }
}
