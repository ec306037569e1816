//! What it costs to move rows of a preempted sequence, and to compute them again.
use xtrain_model::Model;
use xtrain_tensor::Device;
use xtrain_tensor::faults::{self, Fault};

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
        let in_file = self.store.is_file() && !faults::on(Fault::OffloadFileIsFree);
        let per_byte = if on_gpu { 2048.0 } else { 16.0 } + if in_file { 256.0 } else { 0.0 };
        flops + flops_per_position * rows as f64 / 2.0 > 2.0 * bytes * per_byte
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,000 operations for each row and 10 more for each position before it, against 2 x `bytes` x the cost of a byte.
    fn pays(bytes: f64, on_gpu: bool, in_file: bool, rows: usize) -> bool {
        let file = || OffloadStore::in_directory(&std::env::temp_dir(), 1 << 20).unwrap();
        let store = if in_file { file() } else { OffloadStore::default() };
        let cost = RowCost { flops: 1000.0, flops_per_position: 10.0, bytes, on_gpu };
        Offloading { store, cost }.pays(rows)
    }

    #[test]
    fn moving_pays_where_it_costs_fewer_operations() {
        for (bytes, on_gpu, in_file, rows, want) in [
            (31.0, false, false, 0, true),
            (32.0, false, false, 0, false),
            (32.0, false, false, 6, true),
            (1.8, false, true, 0, true),
            (2.0, false, true, 0, false),
            (0.24, true, false, 0, true),
            (0.25, true, false, 0, false),
            (0.21, true, true, 0, true),
            (0.24, true, true, 0, false),
        ] {
            let got = pays(bytes, on_gpu, in_file, rows);
            assert_eq!(got, want, "{bytes} bytes, on a GPU: {on_gpu}, in a file: {in_file}, {rows} rows");
        }
    }

    #[test]
    #[cfg(feature = "faults")]
    fn a_file_that_costs_nothing_is_found() {
        assert!(faults::with(Fault::OffloadFileIsFree, || pays(2.0, false, true, 0)));
    }
}
