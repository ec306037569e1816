//! What a step cannot do without, from shapes alone, and the bound that a device's peaks set to its time.
use serde::Serialize;

use crate::decode::CacheShape;
use crate::model::{Config, Model};
use crate::report::{Column, Table, units};
use crate::tensor::Dtype;

/// Of one step, beside the time that it took.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Ideal {
    #[serde(flatten)]
    needs: Needs,
    /// Multiplications and additions of products and attention.
    operations: u64,
    /// As many of them as were done in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    operations_per_second: Option<f64>,
    /// The longer of moving the bytes and doing the operations, where the device's peaks are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<Bound>,
}

/// Bytes that are moved at least.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
enum Needs {
    /// By a decode step of a batch, at the mean position of its new tokens.
    Decode {
        /// Of the weights in compute type: each is read once for the whole batch; of a table of its own for the input
        /// only the rows of the batch.
        weight_bytes: u64,
        /// Of keys and values that the rows see, each read once for a group of query heads.
        cache_bytes: u64,
    },
    /// By a step of training.
    Train {
        /// Of parameters, both moments and gradients in f32, each read once and written once.
        state_bytes: u64,
    },
}

/// What the device's peaks allow, which nothing reaches.
#[derive(Debug, Clone, Copy, Serialize)]
struct Bound {
    bytes_per_second: f64,
    operations_per_second: f64,
    ms: f64,
    /// The measured time over it.
    times: f64,
}

impl Ideal {
    /// A decode step of `batch` rows that took `ms`, if there was any.
    pub(super) fn decode(model: &Model, batch: usize, mean_position: usize, ms: Option<f64>) -> Ideal {
        let (cfg, bytes) = (model.config(), model.compute().bytes());
        let table = if cfg.tie_embeddings { 0 } else { batch * cfg.dim };
        let needs = Needs::Decode {
            weight_bytes: ((read(cfg) + table) * bytes) as u64,
            cache_bytes: batch as u64 * Ideal::kv_before(model, mean_position),
        };
        let attention: usize = (0..cfg.n_layers).map(|layer| 4 * seen(cfg, layer, mean_position)).sum();
        let attention = attention * cfg.n_heads * cfg.head_dim;
        Ideal::of(model, needs, (batch * (2 * read(cfg) + attention)) as u64, ms)
    }

    /// A step of training on `samples` of `context` tokens that took `ms`. The operations are those of the forward and
    /// twice as many for the backward; what is computed anew is not counted.
    pub(super) fn train(model: &Model, [samples, context]: [usize; 2], ms: f64) -> Ideal {
        let cfg = model.config();
        let needs = Needs::Train { state_bytes: (8 * 4 * cfg.n_params()) as u64 };
        let positions = |layer| (1..=context).map(|at| seen(cfg, layer, at)).sum::<usize>();
        let attention = 4 * (0..cfg.n_layers).map(positions).sum::<usize>() * cfg.n_heads * cfg.head_dim;
        Ideal::of(model, needs, (3 * samples * (2 * context * read(cfg) + attention)) as u64, Some(ms))
    }

    fn of(model: &Model, needs: Needs, operations: u64, ms: Option<f64>) -> Ideal {
        let bytes = match needs {
            Needs::Decode { weight_bytes, cache_bytes } => weight_bytes + cache_bytes,
            Needs::Train { state_bytes } => state_bytes,
        };
        let bound = model.device().peak().zip(ms).map(|(peak, ms)| {
            let most = match model.compute() {
                Dtype::BF16 => peak.bf16_per_second,
                _ => peak.f32_per_second,
            };
            let least = 1e3 * (bytes as f64 / peak.bytes_per_second).max(operations as f64 / most);
            let (bytes_per_second, operations_per_second) = (peak.bytes_per_second, most);
            Bound { bytes_per_second, operations_per_second, ms: least, times: ms / least }
        });
        let operations_per_second = ms.map(|ms| 1e3 * operations as f64 / ms);
        Ideal { needs, operations, operations_per_second, bound }
    }

    /// Bytes of keys and values that the row before position `at` sees: those of all positions up to its own, or of a
    /// window, in each layer, once for a group of query heads.
    pub(super) fn kv_before(model: &Model, at: usize) -> u64 {
        let cfg = model.config();
        let positions: usize = (0..cfg.n_layers).map(|layer| seen(cfg, layer, at)).sum();
        (positions * CacheShape::of(model).bytes_per_token() / cfg.n_layers) as u64
    }

    /// As a table.
    pub(super) fn table(self) -> String {
        let mut table = Table::new([Column::words("a step needs at least"), Column::numbers("")]);
        match self.needs {
            Needs::Decode { weight_bytes, cache_bytes } => {
                table.row(["weights read", &units::bytes(weight_bytes)]);
                table.row(["keys and values read", &units::bytes(cache_bytes)]);
            }
            Needs::Train { state_bytes } => {
                table.row(["parameters, moments, gradients read and written", &units::bytes(state_bytes)]);
            }
        }
        table.row(["operations", &units::count(self.operations)]);
        if let Some(done) = self.operations_per_second {
            table.row(["of which were done", &units::rate(done, "op")]);
        }
        if let Some(bound) = self.bound {
            table.row(["the device moves at most", &units::rate(bound.bytes_per_second, "B")]);
            table.row(["and does at most", &units::rate(bound.operations_per_second, "op")]);
            table.row(["time by these peaks", &format!("{:.3} ms", bound.ms)]);
            table.row(["measured over that", &format!("{:.2}", bound.times)]);
        }
        table.render()
    }
}

/// Parameters that a pass reads whole: all but a table for the input alone.
fn read(cfg: &Config) -> usize {
    cfg.n_params() - if cfg.tie_embeddings { 0 } else { cfg.vocab * cfg.dim }
}

/// Positions that the row before position `at` sees in a layer.
fn seen(cfg: &Config, layer: usize, at: usize) -> usize {
    cfg.window(layer).unwrap_or(usize::MAX).min(at)
}
