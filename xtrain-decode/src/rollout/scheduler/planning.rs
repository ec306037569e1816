//! Planning: the rows of a step, and preemption if the cache has no room for them.
use xtrain_model::Error as ModelError;
use xtrain_tensor::faults::{self, Fault};

use super::{Scheduler, SeqSlot};
use crate::error::Result;
use crate::rollout::plan::{Plan, Run};
use crate::rollout::sequence::Sequence;

impl Scheduler {
    /// Plans the next step. Until all sequences have cache room, drops the drafts, frees the prompts in free slots and
    /// the rows of finished sequences that are held, and preempts sequences, in this order. `max_steps`: the number of
    /// decode steps that the runner can execute without synchronizing; 0: it synchronizes after each forward pass.
    pub(in crate::rollout) fn plan(&mut self, plan: &mut Plan, max_steps: usize) -> Result<()> {
        while !self.fill(plan)? {
            if !self.drop_drafts()? && !self.free_kept_prompts() && !self.evict_held() {
                self.preempt();
            }
        }
        if max_steps > 0 && !self.force_sync {
            plan.multi_step = self.decode_steps(plan, max_steps);
        }
        Ok(())
    }

    /// Whether the cache keeps prompts in free slots.
    fn keeps_prompts(&self) -> bool {
        !faults::on(Fault::PromptInFreeSlotKept)
            && self.free_slots.iter().any(|slot| slot.prompt_of.is_some())
    }

    /// Frees the prompts that the cache keeps in free slots. Returns `false` if there is none.
    fn free_kept_prompts(&mut self) -> bool {
        let found = self.keeps_prompts();
        if found {
            self.free_prompts();
        }
        found
    }

    /// Fills `plan`: decode rows, then prompts, oldest sequence first. Returns `false` if the cache is too small.
    fn fill(&mut self, plan: &mut Plan) -> Result<bool> {
        plan.clear();
        let can_free =
            self.running.len() > 1 || self.held.holds_rows() || self.has_drafts() || self.keeps_prompts();
        let max_rows = self.options.max_batched_tokens.unwrap_or(usize::MAX);
        for prefill in [false, true] {
            for (at, sequence) in self.running.iter().enumerate() {
                let pending = sequence.num_pending();
                if sequence.waits_for_prompt
                    || sequence.leader.is_some()
                    || sequence.end.is_some()
                    || (pending > 1) != prefill
                {
                    continue;
                }
                let left = max_rows - plan.rows.len().min(max_rows);
                let take = match &mut self.cache {
                    // Without a cache all rows of a sequence run, or none.
                    None => pending * usize::from(left >= pending || plan.rows.is_empty()),
                    Some(cache) => {
                        let chunk = if prefill { self.options.prefill_chunk } else { None };
                        let take = pending.min(left).min(chunk.unwrap_or(pending));
                        let take = self.options.kv.rows_per_pass(sequence.num_computed, take);
                        let len = sequence.num_computed + take + sequence.draft().len();
                        match cache.reserve(sequence.slot, len) {
                            Err(ModelError::CacheFull { .. }) if can_free => return Ok(false),
                            reserved => reserved?,
                        }
                        take
                    }
                };
                if take > 0 {
                    self.add_run(plan, at, take);
                }
            }
        }
        Ok(true)
    }

    /// Adds the next `take` rows of the sequence at `at`, and those of its draft.
    fn add_run(&self, plan: &mut Plan, at: usize, take: usize) {
        let sequence = &self.running[at];
        let (start, end) = (plan.rows.len(), sequence.num_computed + take);
        for pos in sequence.num_computed..end {
            let is_prompt = pos < sequence.prompt().len();
            let row_pos = pos + usize::from(!is_prompt && faults::on(Fault::PositionOffByOne));
            plan.rows.push(sequence.slot, row_pos as u32, sequence.tokens()[pos]);
            plan.prefill_rows += usize::from(is_prompt);
        }
        for (pos, &token) in (end..).zip(sequence.draft()) {
            plan.rows.push(sequence.slot, pos as u32, token);
        }
        let drafted = sequence.draft().len();
        let rows = start..start + take + drafted;
        let spec = (end == sequence.tokens().len()).then(|| {
            plan.sampled_rows.extend((rows.end - drafted - 1..rows.end).map(|row| row as u32));
            let shares_prompt = sequence.is_fresh() && self.groups.contains(sequence.group);
            let shares_logits = shares_prompt || sequence.followers > 0;
            sequence.sample_spec(self.running[0].id, shares_logits)
        });
        plan.runs.push(Run { running: at, rows, drafted, spec });
    }

    /// Decode steps that need no token on the host in between and have cache room: 1 to `max_steps`. `None`: there is
    /// no cache, a row is not a decode row, other sequences wait for its logits, or a sequence samples on the host.
    fn decode_steps(&mut self, plan: &Plan, max_steps: usize) -> Option<usize> {
        let cache = self.cache.as_mut()?;
        let decodes = |run: &Run| run.rows.len() == 1 && run.spec.as_ref().is_some_and(|s| !s.shares_logits);
        let on_host = self.running.iter().any(Sequence::samples_on_host);
        if on_host || plan.runs.len() != self.running.len() || !plan.runs.iter().all(decodes) {
            return None;
        }
        let steps = self.running.iter().map(|s| s.remaining(&self.cfg)).min()?.clamp(1, max_steps);
        let mut fits = |step: usize| {
            let mut rows = plan.rows.seq.iter().zip(&plan.rows.pos);
            rows.all(|(&slot, &pos)| cache.reserve(slot, pos as usize + step + 1).is_ok())
        };
        Some((1..steps).find(|&step| !fits(step)).unwrap_or(steps))
    }

    /// Preempts the youngest sequence with cached rows, and the sequences that share them. If there is only the oldest,
    /// the youngest of those that share its rows is preempted.
    fn preempt(&mut self) {
        let last = self.running.len() - 1;
        let youngest = (1..=last).rev().find(|&at| self.running[at].leader.is_none()).unwrap_or(last);
        let index = self.running[youngest].index;
        for at in (youngest + 1..=last)
            .rev()
            .filter(|&at| self.running[at].leader == Some(index))
            .collect::<Vec<_>>()
        {
            self.suspend(at);
        }
        self.suspend(youngest);
    }

    /// The sequence at `at` gives up its slot and its cache room, and waits to continue.
    fn suspend(&mut self, at: usize) {
        let mut sequence = self.running.remove(at);
        self.offload(&mut sequence);
        self.insert_prefix(&sequence);
        self.free_cached(sequence.slot);
        self.free_slots.push(SeqSlot { number: sequence.slot, prompt_of: None });
        sequence.num_computed = 0;
        sequence.waits_for_prompt = false;
        if let Some(leader) = sequence.leader.take()
            && let Some(leader) = self.running.iter_mut().find(|s| s.index == leader)
        {
            leader.followers -= 1;
        }
        self.waiting.insert(sequence);
        self.admission_blocked = true;
        self.counters.preemptions += 1;
    }
}
