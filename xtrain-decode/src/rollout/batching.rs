//! Selects the rows of a step from the running sequences.
use xtrain_model::{Config, Error as ModelError};
use xtrain_tensor::faults::{self, Fault};

use super::groups::PromptGroups;
use super::options::EngineOptions;
use super::plan::{Plan, Run};
use super::sequence::Sequence;
use crate::cache::Cache;
use crate::error::Result;

/// The running sequences and the limits of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch<'a> {
    pub(super) running: &'a [Sequence],
    pub(super) groups: &'a PromptGroups,
    pub(super) options: &'a EngineOptions,
}

impl Batch<'_> {
    /// Fills `plan`: decode rows first, then prompts, the oldest sequence first. Returns `false` if the cache is too
    /// small for all of them.
    pub(super) fn fill(self, plan: &mut Plan, cache: &mut Option<Box<dyn Cache>>) -> Result<bool> {
        plan.clear();
        let max_rows = self.options.max_batched_tokens.unwrap_or(usize::MAX);
        for prefill in [false, true] {
            for (at, sequence) in self.running.iter().enumerate() {
                let pending = sequence.num_pending();
                if sequence.waits_for_prompt || sequence.end.is_some() || (pending > 1) != prefill {
                    continue;
                }
                let left = max_rows - plan.rows.len().min(max_rows);
                let take = match cache {
                    // Without a cache all rows of a sequence run, or none.
                    None => pending * usize::from(left >= pending || plan.rows.is_empty()),
                    Some(cache) => {
                        let chunk = if prefill { self.options.prefill_chunk } else { None };
                        let take = pending.min(left).min(chunk.unwrap_or(pending));
                        match cache.reserve(sequence.slot, sequence.num_computed + take) {
                            Ok(()) => take,
                            Err(ModelError::CacheFull { .. }) if self.running.len() > 1 => return Ok(false),
                            Err(e) => return Err(e.into()),
                        }
                    }
                };
                if take > 0 {
                    self.add_run(plan, at, take);
                }
            }
        }
        Ok(true)
    }

    /// Adds the next `take` rows of the sequence at `at`.
    fn add_run(self, plan: &mut Plan, at: usize, take: usize) {
        let sequence = &self.running[at];
        let (start, end) = (plan.rows.len(), sequence.num_computed + take);
        for pos in sequence.num_computed..end {
            let is_prompt = pos < sequence.prompt().len();
            let row_pos = pos + usize::from(!is_prompt && faults::on(Fault::PositionOffByOne));
            plan.rows.push(sequence.slot, row_pos as u32, sequence.tokens()[pos]);
            plan.prefill_rows += usize::from(is_prompt);
        }
        let rows = start..start + take;
        let spec = (end == sequence.tokens().len()).then(|| {
            plan.sampled_rows.push(rows.end - 1);
            sequence.sample_spec(self.running[0].id, self.shares_logits(sequence))
        });
        plan.runs.push(Run { running: at, index: sequence.index, id: sequence.id, rows, spec });
    }

    fn shares_logits(self, sequence: &Sequence) -> bool {
        sequence.is_fresh() && self.groups.contains(sequence.group)
    }

    /// Decode steps that need no token on the host in between, at most `max_steps`. `None`: a row is not a decode
    /// row, or other sequences wait for its logits.
    pub(super) fn decode_steps(self, plan: &Plan, max_steps: usize, cfg: &Config) -> Option<usize> {
        let decodes = |run: &Run| run.rows.len() == 1 && run.spec.as_ref().is_some_and(|d| !d.shares_logits);
        if plan.runs.len() != self.running.len() || !plan.runs.iter().all(decodes) {
            return None;
        }
        let remaining = plan.runs.iter().map(|run| self.running[run.running].remaining(cfg)).min()?;
        Some(remaining.clamp(1, max_steps))
    }
}

/// Reserves cache room for up to `steps` steps of `plan`. Returns the number of steps that fit, at least one.
pub(super) fn reserve_steps(plan: &Plan, steps: usize, cache: &mut dyn Cache) -> usize {
    let mut fits = |step: usize| {
        let mut rows = plan.rows.seq.iter().zip(&plan.rows.pos);
        rows.all(|(&slot, &pos)| cache.reserve(slot, pos as usize + step + 1).is_ok())
    };
    (1..steps).find(|&step| !fits(step)).unwrap_or(steps)
}
