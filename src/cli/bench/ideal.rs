//! What a decode step cannot do without, from the shape alone: the bound that its time is held against.
use serde::Serialize;

use crate::decode::CacheShape;
use crate::model::Model;
use crate::report::{Column, Table, units};

/// Of one step of a batch, at the mean position of its new tokens.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Ideal {
    /// Bytes of the weights in compute type: each is read once for the whole batch; of a table of its own for the
    /// input only the rows of the batch.
    weight_bytes: u64,
    /// Bytes of keys and values that the rows see, each read once for a group of query heads.
    cache_bytes: u64,
    /// Multiplications and additions of products and attention.
    operations: u64,
}

impl Ideal {
    pub(super) fn of(model: &Model, batch: usize, mean_position: usize) -> Ideal {
        let (cfg, bytes) = (model.config(), model.compute().bytes());
        let table = cfg.vocab * cfg.dim;
        let tables = if cfg.tie_embeddings { 1 } else { 2 };
        let read = cfg.n_params() - (tables - 1) * table;
        let attention = 4 * cfg.n_layers * cfg.n_heads * cfg.head_dim * mean_position;
        Ideal {
            weight_bytes: ((read + (tables - 1) * batch * cfg.dim) * bytes) as u64,
            cache_bytes: (batch * mean_position * CacheShape::of(model).bytes_per_token()) as u64,
            operations: (batch * (2 * read + attention)) as u64,
        }
    }

    /// Bytes of keys and values that the row before position `at` sees: those of all positions up to its own, or of a
    /// window, in each layer, once for a group of query heads.
    pub(super) fn kv_before(model: &Model, at: usize) -> u64 {
        let cfg = model.config();
        let seen = |layer| cfg.window(layer).unwrap_or(usize::MAX).min(at);
        let positions: usize = (0..cfg.n_layers).map(seen).sum();
        (positions * CacheShape::of(model).bytes_per_token() / cfg.n_layers) as u64
    }

    /// As a table.
    pub(super) fn table(self) -> String {
        let mut table = Table::new([Column::words("a step needs at least"), Column::numbers("")]);
        table.row(["weights read", &units::bytes(self.weight_bytes)]);
        table.row(["keys and values read", &units::bytes(self.cache_bytes)]);
        table.row(["operations", &units::count(self.operations)]);
        table.render()
    }
}
