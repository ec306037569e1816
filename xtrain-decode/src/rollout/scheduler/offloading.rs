//! Preemption by offload: the rows of a preempted sequence move to the store, and return when it continues.
use xtrain_model::Error as ModelError;

use super::Scheduler;
use crate::error::Result;
use crate::rollout::options::Preemption;
use crate::rollout::sequence::Sequence;

impl Scheduler {
    /// Moves the computed rows of `sequence`, which is being preempted, to the store, unless they are to be computed
    /// again. A sequence that waits for a prompt, or uses the rows of another one, has none.
    pub(super) fn offload(&mut self, sequence: &mut Sequence) {
        self.discard_offloaded(sequence);
        let (rows, Some(cache)) = (sequence.num_computed, &mut self.cache) else { return };
        let pays = match self.options.preemption {
            Preemption::Recompute => false,
            Preemption::Offload => true,
            Preemption::Auto => self.offloading.pays(rows),
        };
        let is_shared = sequence.waits_for_prompt || sequence.leader.is_some();
        let leads = sequence.is_fresh() && self.groups.contains(sequence.group);
        let fits = self.offloading.store.fits(rows * cache.shape().bytes_per_token());
        if rows == 0 || is_shared || leads || !pays || !fits {
            return;
        }
        // without a copy the rows are computed again
        let Ok(copy) = cache.read_rows(sequence.slot, 0..rows).and_then(|rows| rows.to_host()) else {
            return;
        };
        sequence.offloaded = self.offloading.store.put(copy);
        self.counters.offloaded_rows += if sequence.offloaded.is_some() { rows as u64 } else { 0 };
    }

    /// Returns the rows of `sequence`, which has just got its slot, from the store. Those that the cache holds anyway
    /// are shared. What does not return is computed again.
    pub(super) fn restore_rows(&mut self, sequence: &mut Sequence) -> Result<()> {
        let Some(offloaded) = sequence.offloaded.take() else { return Ok(()) };
        let rows = self.offloading.store.take(offloaded);
        let (Some(rows), Some(cache)) = (rows, &mut self.cache) else { return Ok(()) };
        let held = sequence.num_computed;
        if rows.end() <= held {
            return Ok(());
        }
        match cache.write_rows(sequence.slot, &rows, rows.end()) {
            Err(ModelError::CacheFull { .. }) => return Ok(()),
            written => written?,
        }
        sequence.num_computed = rows.end();
        self.counters.restored_rows += (rows.end() - held) as u64;
        Ok(())
    }

    /// Drops the rows of a sequence that ends while they are in the store.
    pub(super) fn discard_offloaded(&mut self, sequence: &mut Sequence) {
        if let Some(offloaded) = sequence.offloaded.take() {
            self.offloading.store.discard(offloaded);
        }
    }
}
