//! Snapshots: rows that outlive their sequence, for later sequences that begin with the same tokens.
use xtrain_model::Error as ModelError;

use super::Scheduler;
use super::token_snapshots::{SnapshotId, TokenSnapshot};
use crate::cache::KvKind;
use crate::error::{Error, Result};
use crate::prefix_file::KvPrefix;
use crate::rollout::options::PrefixCaching;
use crate::rollout::sequence::Sequence;

impl Scheduler {
    /// Holds the computed rows of the running or held sequence of this index. `None`: it is neither, or it has none.
    pub(in crate::rollout) fn snapshot(&mut self, index: usize) -> Result<Option<SnapshotId>> {
        let kv = self.options.kv;
        if !kv.keeps_all() {
            let want = "a cache that keeps all positions, for a snapshot";
            return Err(Error::option("kv", want, kv));
        }
        let sequences = self.running.iter().chain(self.held.with_rows());
        let find = |index: usize| sequences.clone().find(|s| s.index == index);
        let sequence = find(index).and_then(|s| s.leader.map_or(Some(s), find));
        let (Some(sequence), Some(cache)) = (sequence, &mut self.cache) else { return Ok(None) };
        let len = sequence.num_computed;
        if sequence.waits_for_prompt || len == 0 {
            return Ok(None);
        }
        let tokens = sequence.tokens()[..len].to_vec();
        let rows = cache.snapshot(sequence.slot, len)?;
        Ok(Some(self.snapshots.insert(TokenSnapshot { tokens, rows })))
    }

    /// Ends a snapshot. Returns `false` if there is none of this id.
    pub(in crate::rollout) fn release_snapshot(&mut self, id: SnapshotId) -> bool {
        let (Some(snapshot), Some(cache)) = (self.snapshots.remove(id), &mut self.cache) else {
            return false;
        };
        cache.release(snapshot.rows);
        // a sequence may fit now
        self.admission_blocked = false;
        true
    }

    /// Copies the rows of a snapshot to host memory. `None`: there is none of this id.
    pub(in crate::rollout) fn read_snapshot(&mut self, id: SnapshotId) -> Result<Option<KvPrefix>> {
        let kv = self.options.kv;
        if !kv.is_exact() {
            let want = "a cache in the compute dtype, to copy the rows of a snapshot";
            return Err(Error::option("kv", want, kv));
        }
        let (Some(snapshot), Some(cache)) = (self.snapshots.get(id), &mut self.cache) else {
            return Ok(None);
        };
        let rows = cache.read_snapshot(&snapshot.rows)?.to_host()?;
        Ok(Some(KvPrefix::new(snapshot.tokens.clone(), rows)))
    }

    /// Writes whole pages of `prefix` to the cache and keeps them for later sequences, as those of earlier prompts.
    /// Returns the number of tokens that are kept: as many as there are available pages for.
    pub(in crate::rollout) fn insert_rows(&mut self, prefix: &KvPrefix) -> Result<usize> {
        let refuse = |field, want: &'static str, got: String| Err(Error::option(field, want, got));
        let (Some(cache), KvKind::Paged { page }) = (&mut self.cache, self.options.kv) else {
            return refuse("kv", "paged, to keep the rows of a prefix", self.options.kv.to_string());
        };
        if self.options.prefix_caching == PrefixCaching::Off {
            return refuse("prefix_caching", "on, to keep the rows of a prefix", "off".into());
        }
        let Some(slot) = self.free_slots.last_mut() else {
            return refuse("max_batch", "a slot that no sequence has", "all slots in use".into());
        };
        slot.prompt_of = None;
        let slot = slot.number;
        cache.free(slot);
        let room = self.options.room(&self.cfg).positions.min(cache.available());
        let len = prefix.tokens().len().min(room) / page * page;
        let written = cache.write_rows(slot, prefix.rows(), len);
        cache.insert_prefix(slot, &prefix.tokens()[..len]);
        cache.free(slot);
        written?;
        Ok(len)
    }

    /// Gives `sequence`, which has just got its slot, the rows of the longest kept prefix or snapshot of its tokens.
    /// The last token always runs: it gives the logits.
    pub(super) fn reuse_rows(&mut self, sequence: &mut Sequence) -> Result<()> {
        let Some(cache) = &mut self.cache else { return Ok(()) };
        let tokens = &sequence.tokens()[..sequence.tokens().len() - 1];
        let kept = match self.options.prefix_caching {
            PrefixCaching::On => cache.match_prefix(sequence.slot, tokens),
            PrefixCaching::Off => 0,
        };
        let longer = self.snapshots.longest(tokens).filter(|(_, len)| *len > kept);
        match longer.map(|(rows, len)| cache.restore(rows, sequence.slot, len)) {
            None | Some(Ok(()) | Err(ModelError::CacheFull { .. })) => {}
            Some(Err(error)) => return Err(error.into()),
        }
        sequence.num_computed = cache.seq_len(sequence.slot);
        let reused = sequence.num_computed as u64;
        if sequence.num_computed > kept {
            self.counters.snapshot_rows += reused;
        } else {
            self.counters.prefix_cache_hits += reused;
        }
        Ok(())
    }
}
