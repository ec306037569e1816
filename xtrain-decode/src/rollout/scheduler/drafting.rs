//! Drafting: which sequences draft tokens in the next step, and which drafted rows stay in the cache.
use xtrain_tensor::faults::{self, Fault};

use super::Scheduler;
use crate::cache::Snapshot;
use crate::error::Result;
use crate::rollout::plan::Plan;
use crate::rollout::sequence::Sequence;
use crate::rollout::speculation::{cost_in_batch, look_up};

impl Scheduler {
    /// Determines how many tokens each sequence drafts for the next step. Sequences that only decode and share no rows
    /// draft.
    pub(in crate::rollout) fn plan_drafts(&mut self) {
        let (Some(draft_cost), Some(_)) = (self.draft_cost, &self.cache) else { return };
        let chunk = self.options.prefill_chunk.unwrap_or(usize::MAX);
        let own_rows = self.running.iter().filter(|s| !s.waits_for_prompt && s.leader.is_none());
        let rows = own_rows.map(|s| s.num_pending().min(chunk)).fold(0, usize::saturating_add);
        let cost = cost_in_batch(self.row_cost, rows) + draft_cost;
        let mut left = self.options.max_batched_tokens.map_or(usize::MAX, |max| max.saturating_sub(rows));
        for sequence in &mut self.running {
            sequence.clear_draft();
            let room = if drafts(sequence) { left.min(sequence.remaining(&self.cfg) - 1) } else { 0 };
            sequence.draft_len = if room > 0 { sequence.draft_control.next(cost).min(room) } else { 0 };
            left -= sequence.draft_len;
        }
    }

    /// Drafts tokens by prompt lookup.
    pub(in crate::rollout) fn look_up_drafts(&mut self) {
        for sequence in self.running.iter_mut().filter(|s| s.draft_len > 0) {
            let mut draft = sequence.take_draft();
            look_up(sequence.tokens(), sequence.draft_len, &mut draft);
            sequence.set_draft(draft);
        }
    }

    /// Whether a sequence has drafted tokens.
    pub(super) fn has_drafts(&self) -> bool {
        self.running.iter().any(|s| !s.draft().is_empty())
    }

    /// Drops all drafts and the room that was reserved for them. Returns `false` if there are none.
    pub(super) fn drop_drafts(&mut self) -> Result<bool> {
        let mut dropped = false;
        for sequence in self.running.iter_mut().filter(|s| !s.draft().is_empty()) {
            sequence.clear_draft();
            dropped = true;
            if let Some(cache) = &mut self.cache {
                cache.rewind(Snapshot { seq: sequence.slot, len: sequence.num_computed })?;
            }
        }
        Ok(dropped)
    }

    /// Counts the accepted tokens of a pass and removes the rows of the others from the cache.
    pub(in crate::rollout) fn settle_drafts(&mut self, plan: &Plan) -> Result<()> {
        for run in plan.runs.iter().filter(|run| run.drafted > 0) {
            let sequence = &mut self.running[run.running];
            sequence.clear_draft();
            // all new tokens but the last one have rows; the pass began with the row of the token before them
            let computed = sequence.tokens().len() - 1;
            let accepted = computed.saturating_sub(sequence.num_computed);
            sequence.num_computed = computed;
            sequence.draft_control.record(run.drafted, accepted);
            self.counters.drafted += run.drafted as u64;
            self.counters.accepted += accepted as u64;
            self.counters.layer_rows += accepted as u64;
            self.counters.head_rows += accepted as u64;
        }
        if plan.runs.iter().any(|run| run.drafted > 0) && !faults::on(Fault::DraftRowsNotRewound) {
            self.rewind(plan)?;
        }
        Ok(())
    }
}

/// Whether a sequence can draft: its next row is that of a sampled token, and no other sequence shares the row.
fn drafts(sequence: &Sequence) -> bool {
    let shares = sequence.leader.is_some() || sequence.followers > 0;
    let runs = !sequence.waits_for_prompt && sequence.end.is_none();
    runs && !shares && !sequence.is_fresh() && sequence.num_pending() == 1
}
