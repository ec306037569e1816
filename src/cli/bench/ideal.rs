//! Lower bounds of a step: bytes and operations from the shapes, and the time that the device's peak rates allow.
use std::ops::RangeInclusive;

use serde::Serialize;

use super::workload::Workload;
use crate::decode::{CacheShape, KvKind};
use crate::model::{Config, Model};
use crate::report::{Table, units};
use crate::tensor::{Dtype, Peak};

/// The lower bounds of one step, next to its measured time.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Ideal {
    #[serde(flatten)]
    needs: Needs,
    /// Multiplications and additions of matrix products and attention.
    operations: u64,
    /// Achieved operations per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    operations_per_second: Option<f64>,
    /// Lower bound of the time. `None`: the peak rates of the device are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<Bound>,
}

/// Lower bound of the bytes moved.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
enum Needs {
    /// A decode step of a batch.
    Decode {
        /// Weights in the compute dtype, or quantized as they are in memory, each read once for the whole batch. Of an
        /// untied embedding, only the rows of the batch.
        weight_bytes: u64,
        /// Keys and values that the rows attend to, as the cache stores them, each read once per group of query heads;
        /// those of a shared prompt once for all rows, except over a sinks cache, which has no shared rows.
        cache_bytes: u64,
    },
    /// A training step.
    Train {
        /// Parameters, both moments and gradients in f32, each read once and written once.
        state_bytes: u64,
    },
}

impl Needs {
    fn bytes(self) -> u64 {
        match self {
            Needs::Decode { weight_bytes, cache_bytes } => weight_bytes + cache_bytes,
            Needs::Train { state_bytes } => state_bytes,
        }
    }
}

/// The lower bound that the peak rates of the device set.
#[derive(Debug, Clone, Copy, Serialize)]
struct Bound {
    bytes_per_second: f64,
    operations_per_second: f64,
    ms: f64,
    /// Measured time divided by `ms`.
    times: f64,
}

impl Ideal {
    /// The mean over the decode steps of `workload` with this kind of cache, which took `ms`. `None`: there was no decode
    /// step.
    pub(super) fn decode(model: &Model, kv: KvKind, workload: &Workload, ms: Option<f64>) -> Ideal {
        let cfg = model.config();
        let steps = workload.prompt_len + 1..=workload.prompt_len + workload.max_new.saturating_sub(1).max(1);
        let n = steps.clone().count() as u64;
        let shares = workload.one_prompt && kv.keeps_all();
        let shared = if shares { Ideal::kv_before(model, kv, workload.prompt_len) } else { 0 };
        let per_row = steps.clone().map(|at| Ideal::kv_before(model, kv, at).saturating_sub(shared));
        let needs = Needs::Decode {
            weight_bytes: weights_read(model, workload.batch) as u64,
            cache_bytes: shared + workload.batch as u64 * per_row.sum::<u64>() / n,
        };
        let attention = attention(cfg, kv, steps) as u64 / n;
        Ideal::new(model, needs, workload.batch as u64 * (2 * read(cfg) as u64 + attention), ms)
    }

    /// A training step on `samples` windows of `context` tokens that took `ms` (`None`: not measured). The backward has twice the operations
    /// of the forward; recomputed activations are not counted.
    pub(super) fn train(model: &Model, samples: usize, context: usize, ms: Option<f64>) -> Ideal {
        let cfg = model.config();
        let needs = Needs::Train { state_bytes: (8 * 4 * cfg.n_params()) as u64 };
        let forward = 2 * context * read(cfg) + attention(cfg, KvKind::Off, 1..=context);
        Ideal::new(model, needs, (3 * samples * forward) as u64, ms)
    }

    fn new(model: &Model, needs: Needs, operations: u64, ms: Option<f64>) -> Ideal {
        let bytes = needs.bytes();
        let bound = |(peak, ms)| Bound::new(peak, model.compute(), bytes, operations, ms);
        let bound = model.device().peak().zip(ms).map(bound);
        let operations_per_second = ms.map(|ms| 1e3 * operations as f64 / ms);
        Ideal { needs, operations, operations_per_second, bound }
    }

    /// Bytes and operations.
    pub(super) fn needs(&self) -> [u64; 2] {
        [self.needs.bytes(), self.operations]
    }

    /// Bytes of keys and values, as a cache of this kind stores them, that the row at position `at - 1` attends to: all
    /// positions up to its own, those of a sinks cache, or those of the sliding window, in every layer, once per group
    /// of query heads.
    pub(super) fn kv_before(model: &Model, kv: KvKind, at: usize) -> u64 {
        let cfg = model.config();
        let positions: usize = (0..cfg.n_layers).map(|layer| seen(cfg, layer, kept(kv, at))).sum();
        let bytes = CacheShape::of(model).stored_as(kv.dtype()).bytes_per_token();
        (positions * bytes / cfg.n_layers) as u64
    }

    /// Formats the bounds as a table.
    pub(super) fn table(self) -> String {
        let mut table = Table::new(&["lower bounds of a step"], &[""]);
        match self.needs {
            Needs::Decode { weight_bytes, cache_bytes } => {
                table.row(["weights read", &units::bytes(weight_bytes)]);
                table.row(["keys and values read", &units::bytes(cache_bytes)]);
            }
            Needs::Train { state_bytes } => {
                table.row(["parameters, moments, gradients", &units::bytes(state_bytes)]);
            }
        }
        table.row(["operations", &units::count(self.operations)]);
        if let Some(done) = self.operations_per_second {
            table.row(["achieved", &units::rate(done, "op")]);
        }
        if let Some(bound) = self.bound {
            table.row(["peak memory bandwidth", &units::rate(bound.bytes_per_second, "B")]);
            table.row(["peak compute", &units::rate(bound.operations_per_second, "op")]);
            table.row(["lower bound of time", &format!("{:.3} ms", bound.ms)]);
            table.row(["measured / lower bound", &format!("{:.2}", bound.times)]);
        }
        table.render()
    }
}

impl Bound {
    fn new(peak: Peak, compute: Dtype, bytes: u64, operations: u64, ms: f64) -> Bound {
        let operations_per_second = match compute {
            Dtype::BF16 => peak.bf16_per_second,
            _ => peak.f32_per_second,
        };
        let moving = bytes as f64 / peak.bytes_per_second;
        let bound = 1e3 * moving.max(operations as f64 / operations_per_second);
        Bound { bytes_per_second: peak.bytes_per_second, operations_per_second, ms: bound, times: ms / bound }
    }
}

/// Parameters that a pass reads completely: all except an untied embedding.
fn read(cfg: &Config) -> usize {
    cfg.n_params() - if cfg.tie_embeddings { 0 } else { cfg.vocab * cfg.dim }
}

/// Bytes of the weights that a decode step of `batch` rows reads. See [`Needs::Decode`].
fn weights_read(model: &Model, batch: usize) -> usize {
    let (cfg, all) = (model.config(), model.params.compute_bytes());
    let table = model.params.embed.compute_bytes();
    if cfg.tie_embeddings { all } else { all - table + batch * (table / cfg.vocab) }
}

/// Operations of attention for the rows at positions `rows - 1`: one product with each key and one with each value.
fn attention(cfg: &Config, kv: KvKind, rows: RangeInclusive<usize>) -> usize {
    let layers = |at| (0..cfg.n_layers).map(move |layer| seen(cfg, layer, at));
    let keys: usize = rows.flat_map(|at| layers(kept(kv, at))).sum();
    4 * keys * cfg.n_heads * cfg.head_dim
}

/// Number of the first `at` positions that the cache of a sequence has.
fn kept(kv: KvKind, at: usize) -> usize {
    if kv.keeps_all() { at } else { at.min(kv.slots(at)) }
}

/// Number of positions that the row at position `at - 1` attends to in a layer.
fn seen(cfg: &Config, layer: usize, at: usize) -> usize {
    cfg.window(layer).unwrap_or(usize::MAX).min(at)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::model::store;
    use crate::tensor::Device;

    #[test]
    fn the_bound_is_the_maximum_of_memory_time_and_compute_time() {
        let peak = Peak { bytes_per_second: 1e9, f32_per_second: 1e9, bf16_per_second: 4e9 };
        let bound = |dtype, (bytes, operations)| Bound::new(peak, dtype, bytes, operations, 10.0);
        let shown = |b: Bound| [b.operations_per_second, b.ms, b.times];
        assert_eq!(shown(bound(Dtype::F32, (1_000_000, 5_000_000))), [1e9, 5.0, 2.0]);
        assert_eq!(shown(bound(Dtype::BF16, (1_000_000, 5_000_000))), [4e9, 1.25, 8.0]);
        assert_eq!(shown(bound(Dtype::BF16, (2_000_000, 5_000_000))), [4e9, 2.0, 5.0]);
    }

    #[test]
    fn quantized_weights_are_read_as_they_are_in_memory() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf");
        let read = |name: &str, compute| {
            let opened = store::open_for_inference(&data.join(name), compute, &Device::cpu()).unwrap();
            weights_read(&opened.model, 3)
        };
        // 384 weights of norms; blocks of 32 weights take 36 bytes as Q8_0
        let matrices = 119_168 - 384;
        assert_eq!(read("qwen3_tied.Q8_0.gguf", Dtype::F32), matrices / 32 * 36 + 4 * 384);
        assert_eq!(read("qwen3_tied.Q8_0.gguf", Dtype::BF16), 2 * 119_168);
        assert_eq!(read("qwen3_tied.F16.gguf", Dtype::F32), 4 * 119_168);
        // as Q4_0 20 bytes; of an untied table of 512 rows, three; 320 weights of norms
        let (table, matrices) = (512 * 64, 139_584 - 320);
        let rest = matrices - table + 3 * 64;
        assert_eq!(read("llama3_rope.Q4_0.gguf", Dtype::F32), rest / 32 * 20 + 4 * 320);
    }

    #[test]
    fn the_bounds_of_a_decode_step_follow_from_its_shapes() {
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
        let workload =
            Workload { batch: 3, one_prompt: false, prompt_len: 4, max_new: 4, temperature: 0.0, top_p: 1.0 };
        let needs_of =
            |kv, w: Workload| serde_json::to_value(Ideal::decode(&model, kv, &w, Some(2.0))).unwrap();
        let needs = |w| needs_of(KvKind::default(), w);
        let got = needs(workload);
        let read = cfg.n_params() - 800;
        assert_eq!(got["weight_bytes"], 4 * (read + 3 * 8));
        // Rows at positions 4, 5, 6; a key and a value of 4 channels in 2 layers.
        let per_position = 2 * 2 * 4 * 4;
        assert_eq!(got["cache_bytes"], 3 * 6 * per_position);
        assert_eq!(got["operations"], 3 * (2 * read + 4 * 2 * 6 * 2 * 4));
        assert_eq!(got["operations_per_second"].as_f64(), got["operations"].as_f64().map(|n| n * 500.0));
        let got = needs(Workload { one_prompt: true, ..workload });
        assert_eq!(got["cache_bytes"], (4 + 3 * 2) * per_position);
        // a head of four codes and a scale takes 8 bytes instead of 16
        let int8 = needs_of(KvKind::Int8 { page: 8 }, workload);
        assert_eq!(int8["cache_bytes"], 3 * 6 * per_position / 2);
        assert_eq!(int8["operations"], 3 * (2 * read + 4 * 2 * 6 * 2 * 4));
        for one_prompt in [false, true] {
            let sinks = KvKind::Sinks { sinks: 1, window: 4 };
            let sinks = needs_of(sinks, Workload { one_prompt, ..workload });
            assert_eq!(sinks["cache_bytes"], 3 * 5 * per_position);
            assert_eq!(sinks["operations"], 3 * (2 * read + 4 * 2 * 5 * 2 * 4));
        }
        assert!(
            needs(Workload { max_new: 1, ..workload })["cache_bytes"].as_u64()
                == Some(3 * 5 * per_position as u64)
        );
    }
}
