//! What it costs to move rows of a preempted sequence, and to compute them again.
use xtrain_model::Model;
use xtrain_tensor::Device;

use crate::cache::{CacheShape, KvKind};
use crate::offload::OffloadStore;

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
    pub(super) fn new(model: &Model, kv: KvKind) -> Offloading {
        let cfg = model.config();
        let table = cfg.vocab * cfg.dim * if cfg.tie_embeddings { 1 } else { 2 };
        let cost = RowCost {
            flops: 2.0 * (cfg.n_params() - table) as f64,
            flops_per_position: (4 * cfg.n_layers * cfg.n_heads * cfg.head_dim) as f64,
            bytes: CacheShape::of(model).stored_as(kv.dtype()).bytes_per_token() as f64,
            on_gpu: matches!(model.device(), Device::Gpu(_)),
        };
        Offloading { store: OffloadStore::default(), cost }
    }

    /// Whether it is cheaper to move `rows` rows out and back than to compute them again. Moving a byte is taken to
    /// cost as much as 16 floating-point operations on a CPU and 2,048 on a GPU, and 256 more in a file.
    pub(super) fn pays(&self, rows: usize) -> bool {
        let RowCost { flops, flops_per_position, bytes, on_gpu } = self.cost;
        let per_byte = if on_gpu { 2048.0 } else { 16.0 } + if self.store.is_file() { 256.0 } else { 0.0 };
        flops + flops_per_position * rows as f64 / 2.0 > 2.0 * bytes * per_byte
    }
}
