//! Acceptance: the results of a step, as computed rows and sampled tokens.
use std::collections::BTreeMap;

use xtrain_tensor::faults::{self, Fault};

use super::Scheduler;
use crate::cache::Snapshot;
use crate::error::{Error, Result};
use crate::rollout::options::{LogitsRows, PrefixCaching};
use crate::rollout::plan::{DecodedStep, Outcome, Plan};
use crate::rollout::sequence::End;

impl Scheduler {
    /// Records that the rows of a plan with one forward pass have run. Those of drafted tokens count when they are
    /// accepted.
    pub(in crate::rollout) fn mark_computed(&mut self, plan: &Plan) {
        self.force_sync = false;
        let drafted: usize = plan.runs.iter().map(|run| run.drafted).sum();
        self.counters.passes += 1;
        self.counters.layer_rows += (plan.rows.len() - drafted) as u64;
        self.counters.prefill_rows += plan.prefill_rows as u64;
        self.counters.head_rows += match self.options.logits_rows {
            LogitsRows::Sampled => (plan.sampled_rows.len() - drafted) as u64,
            LogitsRows::All => (plan.rows.len() - drafted) as u64,
        };
        self.advance(plan);
    }

    /// The cache holds the rows of the plan. A prompt that is complete now can serve later sequences.
    fn advance(&mut self, plan: &Plan) {
        let Some(cache) = &mut self.cache else { return };
        for run in &plan.runs {
            let sequence = &mut self.running[run.running];
            let before = sequence.num_computed;
            sequence.num_computed += run.rows.len() - run.drafted;
            let prompt = sequence.prompt();
            let is_complete = (before + 1..=sequence.num_computed).contains(&prompt.len())
                && !faults::on(Fault::PromptCachedAtItsEnd);
            if is_complete && self.options.prefix_caching == PrefixCaching::On {
                cache.insert_prefix(sequence.slot, prompt);
            }
        }
    }

    /// Takes the tokens of one forward pass (several of a sequence with accepted drafts), or the first tokens of
    /// sequences that forked their prompt.
    ///
    /// # Errors
    /// The first row without a token. Its sequence has ended, the others have their tokens.
    pub(in crate::rollout) fn accept(&mut self, outcomes: impl IntoIterator<Item = Outcome>) -> Result<()> {
        let mut result = Ok(());
        for outcome in outcomes {
            self.stage_followers(&outcome);
            let Outcome { running, choice, top, logits } = outcome;
            let sequence = &mut self.running[running];
            if sequence.is_fresh() {
                self.groups.first_token(sequence.group, logits);
            }
            match choice {
                Ok(choice) => {
                    sequence.push_top(top);
                    self.events.push(sequence.push(choice, &self.cfg));
                }
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
    pub(in crate::rollout) fn accept_steps(&mut self, plan: &Plan, steps: &[DecodedStep]) -> Result<()> {
        self.advance(plan);
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
                let event = sequence.push(choice, &self.cfg);
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
        self.rewind(plan)?;
        let before = self.finished.len();
        self.retire();
        self.finished[before..].sort_by_key(|c| ends.get(&c.index).copied());
        Ok(())
    }

    /// Drops the cached rows of a plan that failed before a token was taken, so that the next step computes them again.
    /// A sequence whose cache cannot be rewound loses all of its rows and computes them again.
    pub(in crate::rollout) fn abandon(&mut self, plan: &Plan) {
        let Some(cache) = self.cache.as_mut().filter(|_| !faults::on(Fault::FailedPassNotAbandoned)) else {
            return;
        };
        for run in &plan.runs {
            let sequence = &mut self.running[run.running];
            let (seq, len) = (sequence.slot, sequence.num_computed);
            if cache.seq_len(seq) > len && cache.rewind(Snapshot { seq, len }).is_err() {
                cache.free(seq);
                sequence.num_computed = 0;
            }
        }
    }

    /// Drops the cached rows of the plan's sequences beyond what the scheduler has counted as computed.
    pub(in crate::rollout) fn rewind(&mut self, plan: &Plan) -> Result<()> {
        let cache = self.cache.as_mut().expect("several steps without a synchronization have a cache");
        for run in &plan.runs {
            let sequence = &self.running[run.running];
            if cache.seq_len(sequence.slot) > sequence.num_computed {
                cache.rewind(Snapshot { seq: sequence.slot, len: sequence.num_computed })?;
            }
        }
        Ok(())
    }
}
