//! The scheduler: the running and waiting sequences and their state.
//!
//! Its decisions depend only on tokens and on cache room; it never uses the model. Each step it admits waiting
//! sequences, plans the rows of the step, and takes the sampled tokens back:
//!
//! ```text
//! admit -> plan -> (the runner executes the plan) -> mark_computed -> accept -> retire
//! ```
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use xtrain_model::{Config, Error as ModelError};
use xtrain_tensor::faults::{self, Fault};

use super::batching::{Batch, reserve_steps};
use super::completion::{Completion, Counters, Event, FinishReason};
use super::groups::PromptGroups;
use super::options::{EngineOptions, PrefixCaching};
use super::outcome::{DecodedStep, Outcome, Sampled};
use super::plan::{ForkedSample, Plan, SamplerId};
use super::request::Request;
use super::sequence::{End, Sequence};
use super::slots::{FreeSlots, SeqSlot};
use crate::cache::{Cache, Snapshot};
use crate::error::{Error, Result};

/// The cache of the runner. `None`: every step recomputes its sequences.
type KvCache = Option<Box<dyn Cache>>;

/// Sequences, slots and prompts.
#[derive(Debug)]
pub(super) struct Scheduler<'m> {
    cfg: &'m Config,
    options: EngineOptions,
    /// Sequences without a slot, in the order in which they run.
    waiting: VecDeque<Sequence>,
    /// Sequences with a slot, the oldest first.
    running: Vec<Sequence>,
    free_slots: FreeSlots,
    groups: PromptGroups,
    /// The cache was too small for the running sequences: none is admitted until one ends.
    admission_blocked: bool,
    /// The next step synchronizes after one forward pass, so that the host can determine why a row has no token.
    force_sync: bool,
    /// Sequences submitted so far.
    submitted: usize,
    counters: Counters,
    /// The new tokens of the step.
    events: Vec<Event>,
    /// Completions that the caller has not taken yet.
    finished: Vec<Completion>,
}

/// Where a sequence gets the keys and values of its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PromptSource {
    /// The sequence computes the prompt itself.
    Compute,
    /// The sequence forks from this slot, which holds the whole prompt and whose logits are known.
    Fork(u32),
    /// The sequence waits until another one has computed the prompt.
    Wait,
}

impl<'m> Scheduler<'m> {
    pub(super) fn new(cfg: &'m Config, options: EngineOptions) -> Scheduler<'m> {
        Scheduler {
            cfg,
            options,
            waiting: VecDeque::new(),
            running: Vec::new(),
            free_slots: FreeSlots::new(options.room(cfg).sequences),
            groups: PromptGroups::default(),
            admission_blocked: false,
            force_sync: false,
            submitted: 0,
            counters: Counters::default(),
            events: Vec::new(),
            finished: Vec::new(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Number of running sequences.
    pub(super) fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Number of waiting sequences.
    pub(super) fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// The new tokens of the current step.
    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    pub(super) fn clear_events(&mut self) {
        self.events.clear();
    }

    pub(super) fn take_finished(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.finished)
    }

    /// Adds `g` completions of a checked request to the waiting sequences. Returns the index of the first.
    /// `shares_prompt`: the prompt runs once for all of them.
    pub(super) fn submit(
        &mut self,
        request: Request,
        g: usize,
        sampler: SamplerId,
        shares_prompt: bool,
    ) -> usize {
        let first = self.submitted;
        let request = Arc::new(request);
        self.waiting.extend((0..g).map(|n| Sequence::new(request.clone(), first, n, sampler)));
        if g > 1 && shares_prompt {
            self.groups.insert(first, g);
        }
        self.submitted += g;
        first
    }

    /// Ends a running or waiting sequence. Returns `false` if there is none of this index.
    pub(super) fn stop(&mut self, index: usize, cache: &mut KvCache) -> bool {
        if let Some(at) = self.waiting.iter().position(|s| s.index == index) {
            let sequence = self.waiting.remove(at).expect("the index was found");
            self.leave_group(&sequence);
            self.finished.push(sequence.into_completion(FinishReason::Stop));
        } else if let Some(sequence) = self.running.iter_mut().find(|s| s.index == index) {
            sequence.end = Some(End::Finished(FinishReason::Stop));
        } else {
            return false;
        }
        self.retire(cache);
        true
    }

    /// Gives free slots to waiting sequences, in their order. Those that fork their prompt are added to `forked`:
    /// their first token is due.
    pub(super) fn admit(&mut self, cache: &mut KvCache, forked: &mut Vec<ForkedSample>) -> Result<()> {
        let mut result = Ok(());
        while !(self.free_slots.is_empty() || self.admission_blocked && !self.running.is_empty()) {
            let Some(sequence) = self.waiting.pop_front() else { break };
            result = result.and(self.start(sequence, cache, forked));
        }
        for slot in self.free_slots.take_prompts() {
            free(cache, slot);
        }
        result
    }

    /// Gives `sequence` a slot, and its prompt if another sequence has it.
    fn start(
        &mut self,
        mut sequence: Sequence,
        cache: &mut KvCache,
        forked: &mut Vec<ForkedSample>,
    ) -> Result<()> {
        let slot = self.free_slots.take(sequence.is_fresh().then_some(sequence.group));
        sequence.assign_slot(slot.number, self.cfg);
        let source = self.prompt_source(&sequence, slot);
        sequence.waits_for_prompt = source == PromptSource::Wait;
        if !matches!(source, PromptSource::Fork(_)) && slot.prompt_of.is_some() {
            free(cache, slot.number);
        }
        if source == PromptSource::Compute {
            self.match_prefix(&mut sequence, cache);
        }
        self.running.push(sequence);
        match source {
            PromptSource::Fork(from) => self.fork_prompt(self.running.len() - 1, from, cache, forked),
            PromptSource::Compute | PromptSource::Wait => Ok(()),
        }
    }

    /// Reuses rows that earlier sequences left in the cache. The last token always runs: it gives the logits.
    fn match_prefix(&mut self, sequence: &mut Sequence, cache: &mut KvCache) {
        if let (Some(cache), PrefixCaching::On) = (cache, self.options.prefix_caching) {
            let tokens = sequence.tokens();
            sequence.num_computed = cache.match_prefix(sequence.slot, &tokens[..tokens.len() - 1]);
            self.counters.prefix_cache_hits += sequence.num_computed as u64;
        }
    }

    fn prompt_source(&self, sequence: &Sequence, slot: SeqSlot) -> PromptSource {
        if !sequence.is_fresh() || !self.groups.contains(sequence.group) {
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
    /// for a copy, the sequence computes the prompt itself.
    fn fork_prompt(
        &mut self,
        at: usize,
        from: u32,
        cache: &mut KvCache,
        forked: &mut Vec<ForkedSample>,
    ) -> Result<()> {
        let first_id = self.running[0].id;
        let sequence = &mut self.running[at];
        let (slot, len) = (sequence.slot, sequence.prompt().len());
        let cache = cache.as_mut().expect("without a cache there are no groups");
        sequence.waits_for_prompt = false;
        let copied = if slot == from {
            cache.rewind(Snapshot { seq: slot, len })
        } else {
            cache.fork(from, slot, len)
        };
        match copied {
            Ok(()) => (),
            Err(ModelError::CacheFull { .. }) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        sequence.num_computed = len;
        self.counters.forks += 1;
        let logits = self.groups.logits(sequence.group).expect("a prompt to fork from has its logits");
        forked.push(ForkedSample { running: at, spec: sequence.sample_spec(first_id, true), logits });
        Ok(())
    }

    /// Forks computed prompts for the sequences that wait for them; their first token is then due. If no sequence
    /// computes the prompt any more, a waiting sequence computes it itself.
    pub(super) fn fork_waiting(&mut self, cache: &mut KvCache, forked: &mut Vec<ForkedSample>) -> Result<()> {
        let mut result = Ok(());
        for at in 0..self.running.len() {
            let sequence = &self.running[at];
            if !sequence.waits_for_prompt || sequence.end.is_some() {
                continue;
            }
            match self.prompt_source(sequence, SeqSlot { number: sequence.slot, prompt_of: None }) {
                PromptSource::Fork(from) => result = result.and(self.fork_prompt(at, from, cache, forked)),
                PromptSource::Compute => self.running[at].waits_for_prompt = false,
                PromptSource::Wait => (),
            }
        }
        result
    }

    /// Plans the next step. Preempts sequences until the others have cache room. `max_steps`: the number of decode
    /// steps that the runner can execute without synchronizing; 0: it synchronizes after each forward pass.
    pub(super) fn plan(&mut self, plan: &mut Plan, max_steps: usize, cache: &mut KvCache) -> Result<()> {
        while !self.batch().fill(plan, cache)? {
            self.preempt(cache);
        }
        if let Some(cache) = cache
            && max_steps > 0
            && !self.force_sync
            && let Some(steps) = self.batch().decode_steps(plan, max_steps, self.cfg)
        {
            plan.multi_step = Some(reserve_steps(plan, steps, &mut **cache));
        }
        Ok(())
    }

    fn batch(&self) -> Batch<'_> {
        Batch { running: &self.running, groups: &self.groups, options: &self.options }
    }

    /// Preempts the youngest sequence: it gives up its slot and its cache room, and waits to be recomputed.
    fn preempt(&mut self, cache: &mut KvCache) {
        let mut sequence = self.running.pop().expect("only one of several sequences is preempted");
        self.insert_prefix(&sequence, cache);
        free(cache, sequence.slot);
        self.free_slots.put(SeqSlot { number: sequence.slot, prompt_of: None });
        sequence.num_computed = 0;
        sequence.waits_for_prompt = false;
        self.waiting.push_front(sequence);
        self.admission_blocked = true;
        self.counters.preemptions += 1;
    }

    /// Records that the rows of a plan with one forward pass have run.
    pub(super) fn mark_computed(&mut self, plan: &Plan, cache: &mut KvCache) {
        self.force_sync = false;
        self.counters.passes += 1;
        self.counters.layer_rows += plan.rows.len() as u64;
        self.counters.prefill_rows += plan.prefill_rows as u64;
        if cache.is_some() {
            self.advance(plan, cache);
        }
    }

    /// The cache holds the rows of the plan. A prompt that is complete now can serve later sequences.
    fn advance(&mut self, plan: &Plan, cache: &mut KvCache) {
        for run in &plan.runs {
            let sequence = &mut self.running[run.running];
            let before = sequence.num_computed;
            sequence.num_computed += run.rows.len();
            let prompt = sequence.prompt();
            if (before + 1..=sequence.num_computed).contains(&prompt.len())
                && let (Some(cache), PrefixCaching::On) = (&mut *cache, self.options.prefix_caching)
            {
                cache.insert_prefix(sequence.slot, prompt);
            }
        }
    }

    /// Takes the tokens of a plan with one forward pass.
    ///
    /// # Errors
    /// The first row without a token. Its sequence has ended, the others have their tokens.
    pub(super) fn accept(&mut self, sampled: Sampled) -> Result<()> {
        self.counters.head_rows += sampled.logits_rows as u64;
        self.accept_outcomes(sampled.outcomes)
    }

    /// Takes the first tokens of sequences that forked their prompt.
    ///
    /// # Errors
    /// As [`Scheduler::accept`].
    pub(super) fn accept_outcomes(&mut self, outcomes: Vec<Outcome>) -> Result<()> {
        let mut result = Ok(());
        for Outcome { running, choice, logits } in outcomes {
            let sequence = &mut self.running[running];
            if sequence.is_fresh() {
                self.groups.first_token(sequence.group, logits);
            }
            match choice {
                Ok(choice) => self.events.push(sequence.push(choice, self.cfg)),
                Err(source) => {
                    sequence.end = Some(End::SamplingFailed);
                    let (id, position) = (sequence.id, sequence.tokens().len());
                    result = result.and(Err(Error::Sample { id, position, source }));
                }
            }
        }
        result
    }

    /// Takes the tokens of several decode steps, in the order of the steps, and retires the sequences that end in
    /// them.
    ///
    /// Tokens after the end of a sequence are dropped. From a step on in which a row has no token, nothing is taken:
    /// the next step repeats it with a synchronization.
    pub(super) fn accept_steps(
        &mut self,
        plan: &Plan,
        steps: &[DecodedStep],
        cache: &mut KvCache,
    ) -> Result<()> {
        self.advance(plan, cache);
        self.counters.passes += steps.len() as u64;
        // the step in which each sequence ends
        let mut ends = BTreeMap::new();
        for (step, choices) in steps.iter().enumerate() {
            let mut pairs = plan.runs.iter().zip(choices);
            if pairs.any(|(run, choice)| self.running[run.running].end.is_none() && choice.is_none()) {
                self.force_sync = true;
                self.counters.surplus_rows += ((steps.len() - step) * plan.runs.len()) as u64;
                break;
            }
            if step == 0 {
                self.counters.prefill_rows += plan.prefill_rows as u64;
            }
            for (run, choice) in plan.runs.iter().zip(choices) {
                let sequence = &mut self.running[run.running];
                let ended = sequence.end.is_some() && !faults::on(Fault::TokensAfterStopKept);
                let (Some(choice), false) = (*choice, ended) else {
                    self.counters.surplus_rows += 1;
                    continue;
                };
                let event = sequence.push(choice, self.cfg);
                if event.finish.is_some() {
                    ends.insert(sequence.index, step);
                }
                self.events.push(event);
                self.counters.layer_rows += 1;
                self.counters.head_rows += 1;
            }
        }
        for run in &plan.runs {
            let sequence = &mut self.running[run.running];
            sequence.num_computed = sequence.tokens().len() - 1;
        }
        self.rewind(plan, cache)?;
        let before = self.finished.len();
        self.retire(cache);
        self.finished[before..].sort_by_key(|c| ends.get(&c.index).copied());
        Ok(())
    }

    /// Drops the cached rows of the plan's sequences beyond what the scheduler has counted as computed.
    pub(super) fn rewind(&mut self, plan: &Plan, cache: &mut KvCache) -> Result<()> {
        let cache = cache.as_mut().expect("several steps without a synchronization have a cache");
        for run in &plan.runs {
            let sequence = &self.running[run.running];
            if cache.seq_len(sequence.slot) > sequence.num_computed {
                cache.rewind(Snapshot { seq: sequence.slot, len: sequence.num_computed })?;
            }
        }
        Ok(())
    }

    /// Removes the sequences that have ended and frees their slots.
    pub(super) fn retire(&mut self, cache: &mut KvCache) {
        let mut at = 0;
        while at < self.running.len() {
            let Some(end) = self.running[at].end else {
                at += 1;
                continue;
            };
            let sequence = self.running.remove(at);
            self.admission_blocked = false;
            self.release_slot(&sequence, cache);
            if end != End::SamplingFailed {
                self.leave_group(&sequence);
            }
            if let End::Finished(reason) = end {
                self.finished.push(sequence.into_completion(reason));
            }
        }
    }

    /// Frees the slot of a sequence that has ended. The cache keeps its prompt until the next sequences are admitted,
    /// if the first of them needs it.
    fn release_slot(&mut self, sequence: &Sequence, cache: &mut KvCache) {
        let next = self.waiting.front().filter(|s| s.group == sequence.group && s.is_fresh());
        let prompt_of = next.filter(|_| sequence.holds_prompt()).map(|s| s.group);
        self.insert_prefix(sequence, cache);
        if prompt_of.is_none() {
            free(cache, sequence.slot);
        }
        self.free_slots.put(SeqSlot { number: sequence.slot, prompt_of });
    }

    /// Keeps the rows of a sequence for later ones that begin with the same tokens.
    fn insert_prefix(&self, sequence: &Sequence, cache: &mut KvCache) {
        if let (Some(cache), PrefixCaching::On) = (cache, self.options.prefix_caching) {
            cache.insert_prefix(sequence.slot, &sequence.tokens()[..sequence.num_computed]);
        }
    }

    /// A sequence that ends without a token no longer needs the prompt of its group.
    fn leave_group(&mut self, sequence: &Sequence) {
        if sequence.is_fresh() {
            self.groups.leave(sequence.group);
        }
    }
}

fn free(cache: &mut KvCache, slot: u32) {
    if let Some(cache) = cache {
        cache.free(slot);
    }
}

#[cfg(test)]
mod tests {
    use xtrain_model::{Config, Model};
    use xtrain_tensor::{Device, Dtype};

    use super::*;

    #[test]
    fn a_waiting_completion_owns_no_token_memory() {
        let cfg = Config {
            vocab: 37,
            dim: 8,
            ffn_dim: 8,
            n_layers: 1,
            n_heads: 2,
            n_kv_heads: 2,
            head_dim: 4,
            max_positions: 64,
            rope_theta: 1e4,
            norm_eps: 1e-6,
            ..Config::default()
        };
        let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 7).unwrap();
        let options = EngineOptions { max_batch: 3, ..EngineOptions::default() };
        let mut cache = options.cache(&model).unwrap();
        let mut scheduler = Scheduler::new(&cfg, options);
        scheduler.submit(Request::greedy(&[1, 2, 3], 9), 1 << 16, SamplerId(0), true);
        scheduler.admit(&mut cache, &mut Vec::new()).unwrap();
        let first = &scheduler.running[0];
        assert_eq!((scheduler.num_running(), scheduler.num_waiting()), (3, (1 << 16) - 3));
        assert!(scheduler.running.iter().all(|s| s.memory(first) == (12, true)));
        assert!(scheduler.waiting.iter().all(|s| s.memory(first) == (0, true)));
        // a sequence that is stopped before it had a slot has no token
        assert!(scheduler.stop(60_000, &mut cache));
        assert!(scheduler.take_finished()[0].tokens.is_empty());
    }
}
