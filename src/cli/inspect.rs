//! `xtrain inspect`: prints configuration, parameters and memory use of a model.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::common::{Common, Layers};
use super::model_arg::OptionalModelArg;
use super::{CliError, Exit, loaded, out, source};
use crate::config::RunConfig;
use crate::decode::{CacheShape, KvDtype};
use crate::memory::{self, Memory, Part};
use crate::model::gguf::Quant;
use crate::model::store::{self, WeightCounts};
use crate::model::{Config, hf};
use crate::report::{Table, units};
use crate::tensor::{Device, Dtype};
use crate::training;

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
--verify reads the whole model, checks the checksums of a checkpoint, and counts weights that are NaN or infinite. \
Without it, only headers are read.

Examples:
  xtrain inspect runs/shakespeare
  xtrain inspect model.gguf --verify
  xtrain inspect --set model.preset=qwen3-0.6b --json")]
pub(super) struct InspectArgs {
    #[command(flatten)]
    model: OptionalModelArg,
    /// Read all weights, verify their checksums and count those that are NaN or infinite.
    #[arg(long, requires = "model_given")]
    verify: bool,
    /// Fail if the newest checkpoint of a run is damaged. Without it, the newest valid one is described.
    #[arg(long, requires = "model_given")]
    strict: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    layers: Layers,
    #[command(flatten)]
    common: Common,
}

/// Rows of the configuration table: the displayed name and the key of `config.json`.
const KEYS: [(&str, &str); 13] = [
    ("family", "model_type"),
    ("vocab", "vocab_size"),
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
    ("n_kv_heads", "num_key_value_heads"),
    ("head_dim", "head_dim"),
    ("ffn_dim", "intermediate_size"),
    ("max_positions", "max_position_embeddings"),
    ("rope_theta", "rope_theta"),
    ("norm_eps", "rms_norm_eps"),
    ("tie_embeddings", "tie_word_embeddings"),
    ("eos_ids", "eos_token_id"),
];

#[derive(Serialize)]
struct Report {
    /// The file or directory of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<String>,
    /// Newer checkpoints of the run that are damaged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<String>,
    config: serde_json::Value,
    compute: String,
    /// The number of tensors of each type in a GGUF file. Empty: the model is no GGUF file.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    types: BTreeMap<String, usize>,
    parameters: u64,
    parts: Vec<Part>,
    memory: Memory,
    cache_bytes_per_token: usize,
    /// With `--kv int8`.
    cache_bytes_per_token_int8: usize,
    max_positions: usize,
    eos: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer_vocab: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<Verified>,
}

/// What reading all weights found.
#[derive(Serialize)]
struct Verified {
    tensors: u64,
    weights: u64,
    nan: u64,
    infinite: u64,
}

pub(super) fn run(args: &InspectArgs) -> Result<(), CliError> {
    let device = args.common.open()?;
    let counts = args.model.path().filter(|_| args.verify).map(verify).transpose()?;
    let mut report = match args.model.path() {
        Some(path) => describe(args, path, &device, counts.as_ref())?,
        None => {
            let config = RunConfig::load(&args.layers.layers())?;
            let tokenizer = source::tokenizer(&config.data.tokenizer)?;
            let vocab = tokenizer.vocab_size();
            let compute = training::compute(args.common.dtype.unwrap_or(config.train.dtype));
            let eos = tokenizer.eos_ids().to_vec();
            Report::of(&training::model_config(&config, vocab), compute, eos, Some(vocab))?
        }
    };
    report.verified = counts.as_ref().map(|found| Verified {
        tensors: found.tensors,
        weights: found.weights,
        nan: found.nan,
        infinite: found.infinite,
    });
    if args.json {
        out::print_json(&report)?
    } else {
        out::print(report.text())?
    }
    let Some((found, name)) =
        counts.as_ref().and_then(|found| Some((found, found.first_non_finite.as_ref()?)))
    else {
        return Ok(());
    };
    let WeightCounts { weights, nan, infinite, .. } = found;
    let message = format!("{nan} of {weights} weights are NaN and {infinite} are infinite, first in {name}");
    Err(CliError::new(Exit::Data, message))
}

/// Reads the whole model.
fn verify(path: &Path) -> Result<WeightCounts, CliError> {
    Ok(store::verify(&loaded::find(path)?)?)
}

/// Describes the model in `path`, or the checkpoint that was verified, and its memory on `device`. Reports newer
/// checkpoints that are damaged.
fn describe(
    args: &InspectArgs,
    path: &Path,
    device: &Device,
    counts: Option<&WeightCounts>,
) -> Result<Report, CliError> {
    let (described, compute) =
        loaded::describe(counts.map_or(path, |verified| &verified.path), &args.common)?;
    let refused = counts.map_or(&described.refused, |verified| &verified.refused);
    let paths: Vec<PathBuf> = refused.iter().map(|refused| refused.path.clone()).collect();
    if args.strict {
        loaded::require_newest(&paths, &described.path, "described")?;
    }
    loaded::warn_refused(refused, &described.path);
    let vocab = described.tokenizer.as_ref().map(|t| t.vocab_size());
    let report = Report::of(&described.config, compute, described.eos, vocab)?;
    let quantized = |at: usize, shape| described.types.get(at)?.packed_bytes(shape, compute, device);
    let to_decode = memory::to_decode(&described.config, compute, quantized)?;
    Ok(Report {
        checkpoint: Some(described.path.display().to_string()),
        refused: paths.iter().map(|path| path.display().to_string()).collect(),
        types: count(&described.types),
        memory: Memory { to_decode, ..report.memory },
        ..report
    })
}

/// How often each type occurs.
fn count(types: &[Quant]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    types.iter().for_each(|quant| *counts.entry(quant.to_string()).or_default() += 1);
    counts
}

impl Report {
    fn of(
        cfg: &Config,
        compute: Dtype,
        eos: Vec<u32>,
        tokenizer_vocab: Option<usize>,
    ) -> Result<Report, CliError> {
        let shape = CacheShape {
            n_layers: cfg.n_layers,
            n_kv_heads: cfg.n_kv_heads,
            head_dim: cfg.head_dim,
            dtype: compute,
            kv_dtype: KvDtype::Compute,
            device: Device::cpu(),
        };
        Ok(Report {
            checkpoint: None,
            refused: Vec::new(),
            config: hf::to_json(cfg, &eos)?,
            compute: compute.to_string(),
            types: BTreeMap::new(),
            parameters: cfg.n_params() as u64,
            parts: memory::parts(cfg)?,
            memory: memory::memory(cfg, compute)?,
            cache_bytes_per_token: shape.bytes_per_token(),
            cache_bytes_per_token_int8: shape.stored_as(KvDtype::Int8).bytes_per_token(),
            max_positions: cfg.max_positions,
            eos,
            tokenizer_vocab,
            verified: None,
        })
    }

    fn text(&self) -> String {
        let mut config = Table::new(&["config"], &["value"]);
        for (key, field) in KEYS {
            let value = &self.config[field];
            config.row([key, &value.as_str().map_or_else(|| value.to_string(), str::to_string)]);
        }
        config.row(["compute", &self.compute]);
        if !self.types.is_empty() {
            let types: Vec<String> = self.types.iter().map(|(name, n)| format!("{n} {name}")).collect();
            config.row(["types", &types.join(", ")]);
        }
        if let Some(vocab) = self.tokenizer_vocab {
            config.row(["tokenizer_vocab", &vocab.to_string()]);
        }
        let mut parts = Table::new(&["part"], &["tensors", "parameters", "share"]);
        let share = |n: u64| format!("{:.1} %", 100.0 * n as f64 / self.parameters as f64);
        for part in &self.parts {
            let Part { name, tensors, parameters } = part;
            parts.row([name.to_string(), tensors.to_string(), parameters.to_string(), share(*parameters)]);
        }
        let tensors: usize = self.parts.iter().map(|part| part.tensors).sum();
        parts.row(["total".into(), tensors.to_string(), self.parameters.to_string(), share(self.parameters)]);
        let cache = self.cache_bytes_per_token as u64;
        let mut bytes = Table::new(&["memory"], &["bytes", ""]);
        for (what, n) in [
            ("inference, without KV cache", self.memory.to_decode),
            ("KV cache per token", cache),
            ("KV cache per token, --kv int8", self.cache_bytes_per_token_int8 as u64),
            ("KV cache per full sequence", cache * self.max_positions as u64),
            ("master weights (f32)", self.memory.weights),
            ("packed weights", self.memory.packed),
            ("packed weights, backward", self.memory.packed_backward),
            ("gradients (f32)", self.memory.gradients),
            ("optimizer state (f32)", self.memory.moments),
            ("training, without activations", self.memory.to_train()),
        ] {
            bytes.row([what.to_string(), n.to_string(), units::bytes(n)]);
        }
        let mut tables = vec![config, parts, bytes];
        if let Some(Verified { tensors, weights, nan, infinite }) = self.verified {
            let mut verified = Table::new(&["verified"], &["count"]);
            let counts = [("tensors", tensors), ("weights", weights), ("NaN", nan), ("infinite", infinite)];
            counts.into_iter().for_each(|(what, n)| verified.row([what, &n.to_string()]));
            tables.push(verified);
        }
        tables.iter().map(Table::render).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: InspectArgs,
    }

    /// The description of a file of `tests/data/gguf` with these flags.
    fn described(name: &str, flags: &[&str]) -> Report {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf").join(name);
        let args = Line::try_parse_from(["inspect"].iter().chain(flags)).unwrap().args;
        describe(&args, &path, &Device::cpu(), None).unwrap()
    }

    #[test]
    fn quantized_matrices_are_named_and_take_the_memory_of_their_blocks() {
        let report = described("qwen3_tied.Q8_0.gguf", &[]);
        assert_eq!(serde_json::to_string(&report.types).unwrap(), r#"{"F32":9,"Q8_0":15}"#);
        assert!(report.text().contains("  9 F32, 15 Q8_0\n"), "{}", report.text());
        // the rows of each matrix fill panels of 64: those of k and v 32, those of gate and up 160
        let layer = 64 * (64 + 64 + 64 + 64) + 2 * 192 * 64 + 64 * 160;
        let (table, vectors) = (512 * 64, 384);
        assert_eq!(report.memory.to_decode, (table + 2 * layer) / 32 * 36 + 4 * vectors);
        let bf16 = described("qwen3_tied.Q8_0.gguf", &["--dtype", "bf16"]).memory.to_decode;
        assert_eq!(bf16, 2 * (119_168 - vectors) + 4 * vectors);
        let half = described("qwen3_tied.F16.gguf", &[]);
        assert_eq!((half.types["F16"], half.memory.to_decode), (15, 4 * 119_168));
    }
}
