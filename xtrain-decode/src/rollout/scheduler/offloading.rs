//! Preemption by off-load: the rows of a preempted sequence move to the store, and return when it continues.
use xtrain_model::{Error as ModelError, Model};
use xtrain_tensor::Device;

use super::Scheduler;
use crate::cache::CacheShape;
use crate::error::Result;
use crate::offload::OffloadStore;
use crate::rollout::options::Preemption;
use crate::rollout::sequence::Sequence;

/// The store, and what its use costs.
#[derive(Debug)]
pub(in crate::rollout) struct Offloading {
    pub(in crate::rollout) store: OffloadStore,
    cost: RowCost,
}

/// The work of one row, in counts: no clock decides.
#[derive(Debug, Clone, Copy)]
struct RowCost {
    /// Floating-point operations besides those of attention.
    flops: f64,
    /// Floating-point operations of attention for each position before the row.
    flops_per_position: f64,
    /// Bytes of keys and values.
    bytes: f64,
    on_gpu: bool,
}

impl Offloading {
    pub(super) fn new(model: &Model) -> Offloading {
        let cfg = model.config();
        let table = cfg.vocab * cfg.dim * if cfg.tie_embeddings { 1 } else { 2 };
        let cost = RowCost {
            flops: 2.0 * (cfg.n_params() - table) as f64,
            flops_per_position: (4 * cfg.n_layers * cfg.n_heads * cfg.head_dim) as f64,
            bytes: CacheShape::of(model).bytes_per_token() as f64,
            on_gpu: matches!(model.device(), Device::Gpu(_)),
        };
        Offloading { store: OffloadStore::default(), cost }
    }

    /// Whether it is cheaper to move `rows` rows out and back than to compute them again. Moving a byte is taken to
    /// cost as much as 16 floating-point operations on a CPU and 2,048 on a GPU, and 256 more in a file.
    fn pays(&self, rows: usize) -> bool {
        let RowCost { flops, flops_per_position, bytes, on_gpu } = self.cost;
        let per_byte = if on_gpu { 2048.0 } else { 16.0 } + if self.store.is_file() { 256.0 } else { 0.0 };
        flops + flops_per_position * rows as f64 / 2.0 > 2.0 * bytes * per_byte
    }
}

impl Scheduler<'_> {
    /// Moves the computed rows of `sequence`, which is being preempted, to the store, unless they are to be computed
    /// again. A sequence that waits for a prompt, or uses the rows of another one, has none.
    pub(super) fn offload(&mut self, sequence: &mut Sequence) -> Result<()> {
        self.discard_offloaded(sequence);
        let (rows, Some(cache)) = (sequence.num_computed, &self.cache) else { return Ok(()) };
        let pays = match self.options.preemption {
            Preemption::Recompute => false,
            Preemption::Offload => true,
            Preemption::Auto => self.offloading.pays(rows),
        };
        let is_shared = sequence.waits_for_prompt || sequence.leader.is_some();
        let leads = sequence.is_fresh() && self.groups.contains(sequence.group);
        let fits = self.offloading.store.fits(rows * cache.shape().bytes_per_token());
        if rows == 0 || is_shared || leads || !pays || !fits {
            return Ok(());
        }
        let copy = cache.read_rows(sequence.slot, 0..rows)?.to_host()?;
        sequence.offloaded = self.offloading.store.put(copy);
        self.counters.offloaded_rows += if sequence.offloaded.is_some() { rows as u64 } else { 0 };
        Ok(())
    }

    /// Returns the rows of `sequence`, which has just got its slot, from the store. Those that the cache holds anyway are
    /// shared. What does not return is computed again.
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
