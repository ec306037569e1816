//! What a step cannot do without, from shapes alone, and the bound that a device's peaks set to its time.
use std::ops::RangeInclusive;

use serde::Serialize;

use super::subject::Load;
use crate::decode::CacheShape;
use crate::model::{Config, Model};
use crate::report::{Column, Table, units};
use crate::tensor::{Dtype, Peak};

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
    /// By a decode step of a batch.
    Decode {
        /// Of the weights in compute type: each is read once for the whole batch; of a table of its own for the input
        /// only the rows of the batch.
        weight_bytes: u64,
        /// Of keys and values that the rows see, each read once for a group of query heads, and those of a prompt
        /// that all rows complete once for all.
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
    /// A decode step of `load` that took `ms`, if there was any: the mean over its steps.
    pub(super) fn decode(model: &Model, load: &Load, ms: Option<f64>) -> Ideal {
        let (cfg, bytes) = (model.config(), model.compute().bytes());
        let table = if cfg.tie_embeddings { 0 } else { load.batch * cfg.dim };
        let steps = load.prompt_len + 1..=load.prompt_len + load.max_new.saturating_sub(1).max(1);
        let n = steps.clone().count() as u64;
        let seen_by_all = if load.one_prompt { Ideal::kv_before(model, load.prompt_len) } else { 0 };
        let of_a_row = steps.clone().map(|at| Ideal::kv_before(model, at).saturating_sub(seen_by_all));
        let needs = Needs::Decode {
            weight_bytes: ((read(cfg) + table) * bytes) as u64,
            cache_bytes: seen_by_all + load.batch as u64 * of_a_row.sum::<u64>() / n,
        };
        let attention = attention(cfg, steps) as u64 / n;
        Ideal::of(model, needs, load.batch as u64 * (2 * read(cfg) as u64 + attention), ms)
    }

    /// A step of training on `samples` of `context` tokens that took `ms`. The operations are those of the forward and
    /// twice as many for the backward; what is computed anew is not counted.
    pub(super) fn train(model: &Model, [samples, context]: [usize; 2], ms: f64) -> Ideal {
        let cfg = model.config();
        let needs = Needs::Train { state_bytes: (8 * 4 * cfg.n_params()) as u64 };
        let forward = 2 * context * read(cfg) + attention(cfg, 1..=context);
        Ideal::of(model, needs, (3 * samples * forward) as u64, Some(ms))
    }

    fn of(model: &Model, needs: Needs, operations: u64, ms: Option<f64>) -> Ideal {
        let bytes = match needs {
            Needs::Decode { weight_bytes, cache_bytes } => weight_bytes + cache_bytes,
            Needs::Train { state_bytes } => state_bytes,
        };
        let bound = |(peak, ms)| Bound::of(peak, model.compute(), (bytes, operations), ms);
        let bound = model.device().peak().zip(ms).map(bound);
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
            table.row(["operations done", &units::rate(done, "op")]);
        }
        if let Some(bound) = self.bound {
            table.row(["most that the device can move", &units::rate(bound.bytes_per_second, "B")]);
            table.row(["most that it can do", &units::rate(bound.operations_per_second, "op")]);
            table.row(["least time by these", &format!("{:.3} ms", bound.ms)]);
            table.row(["measured over that", &format!("{:.2}", bound.times)]);
        }
        table.render()
    }
}

impl Bound {
    fn of(peak: Peak, compute: Dtype, (bytes, operations): (u64, u64), ms: f64) -> Bound {
        let operations_per_second = match compute {
            Dtype::BF16 => peak.bf16_per_second,
            _ => peak.f32_per_second,
        };
        let moving = bytes as f64 / peak.bytes_per_second;
        let least = 1e3 * moving.max(operations as f64 / operations_per_second);
        Bound { bytes_per_second: peak.bytes_per_second, operations_per_second, ms: least, times: ms / least }
    }
}

/// Parameters that a pass reads whole: all but a table for the input alone.
fn read(cfg: &Config) -> usize {
    cfg.n_params() - if cfg.tie_embeddings { 0 } else { cfg.vocab * cfg.dim }
}

/// Operations of attention for the rows before some positions: a product with each key and one with each value.
fn attention(cfg: &Config, rows: RangeInclusive<usize>) -> usize {
    let keys: usize = rows.flat_map(|at| (0..cfg.n_layers).map(move |layer| seen(cfg, layer, at))).sum();
    4 * keys * cfg.n_heads * cfg.head_dim
}

/// Positions that the row before position `at` sees in a layer.
fn seen(cfg: &Config, layer: usize, at: usize) -> usize {
    cfg.window(layer).unwrap_or(usize::MAX).min(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Device;

    #[test]
    fn a_bound_is_the_longer_of_moving_and_computing() {
        let peak = Peak { bytes_per_second: 1e9, f32_per_second: 1e9, bf16_per_second: 4e9 };
        let bound = |dtype, needs| Bound::of(peak, dtype, needs, 10.0);
        let shown = |b: Bound| [b.operations_per_second, b.ms, b.times];
        assert_eq!(shown(bound(Dtype::F32, (1_000_000, 5_000_000))), [1e9, 5.0, 2.0]);
        assert_eq!(shown(bound(Dtype::BF16, (1_000_000, 5_000_000))), [4e9, 1.25, 8.0]);
        assert_eq!(shown(bound(Dtype::BF16, (2_000_000, 5_000_000))), [4e9, 2.0, 5.0]);
    }

    #[test]
    fn a_decode_step_needs_what_its_shapes_say() {
        let cfg = Config {
            vocab: 100,
            dim: 8,
            ffn_dim: 16,
            n_layers: 2,
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 4,
            max_positions: 32,
            rope_theta: 1e4,
            norm_eps: 1e-6,
            tie_embeddings: false,
            ..Config::default()
        };
        let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 0).unwrap();
        let load = Load { batch: 3, one_prompt: false, prompt_len: 4, max_new: 4 };
        let needs = |load: Load| serde_json::to_value(Ideal::decode(&model, &load, Some(2.0))).unwrap();
        let got = needs(load);
        let read = cfg.n_params() - 800;
        assert_eq!(got["weight_bytes"], 4 * (read + 3 * 8));
        // rows before positions 5, 6, 7; a key and a value of 4 channels in 2 layers
        let of_a_position = 2 * 2 * 4 * 4;
        assert_eq!(got["cache_bytes"], 3 * 6 * of_a_position);
        assert_eq!(got["operations"], 3 * (2 * read + 4 * 2 * 6 * 2 * 4));
        assert_eq!(got["operations_per_second"].as_f64(), got["operations"].as_f64().map(|n| n * 500.0));
        let got = needs(Load { one_prompt: true, ..load });
        assert_eq!(got["cache_bytes"], (4 + 3 * 2) * of_a_position);
        assert!(
            needs(Load { max_new: 1, ..load })["cache_bytes"].as_u64() == Some(3 * 5 * of_a_position as u64)
        );
    }
}
