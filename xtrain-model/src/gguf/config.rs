//! The model config in the metadata of a GGUF file.
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::{RopeScaling, Truncate, Yarn};

use super::header::{Entry, Header};
use super::metadata::{Metadata, Value};
use crate::checkpoint::Result;
use crate::config::{Biases, Config};
use crate::error::Error;
use crate::rope_divisors;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arch {
    Qwen3,
    Qwen2,
    /// Also Mistral without a sliding window.
    Llama,
}

/// The default base of the RoPE frequencies.
const THETA: f64 = 10_000.0;
/// The tensor with the divisors of Llama's RoPE frequencies.
pub(super) const DIVISORS: &str = "rope_freqs.weight";

impl Arch {
    /// The value of `general.architecture`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Arch::Qwen3 => "qwen3",
            Arch::Qwen2 => "qwen2",
            Arch::Llama => "llama",
        }
    }

    pub(super) fn read(metadata: &Metadata) -> Result<Arch> {
        const KEY: &str = "general.architecture";
        let name = metadata.text(KEY)?.unwrap_or("none");
        let arch = [Arch::Qwen3, Arch::Qwen2, Arch::Llama].into_iter().find(|arch| arch.name() == name);
        arch.ok_or_else(|| metadata.bad(KEY, "qwen3, qwen2 or llama", format!("{name:?}")))
    }

    /// The architecture of a model. Fails for a model that no supported GGUF architecture can represent.
    pub(super) fn of(cfg: &Config) -> Result<Arch, Error> {
        let refuse = |field, want, got: String| Err(Error::Config { field, want, got });
        let mut windows = cfg.windows.iter().flatten();
        if let Some(first) = windows.next() {
            let layers = format!("{} of {} layers", 1 + windows.count(), cfg.n_layers);
            let got =
                format!("a window of {first} positions in {layers}; a Hugging Face directory can hold it");
            return refuse("sliding_window", "none in a GGUF file", got);
        }
        let Biases { qkv, o, mlp } = cfg.biases;
        let arch = match (cfg.qk_norm, qkv, o, mlp) {
            (true, false, false, false) => Arch::Qwen3,
            (false, true, false, false) => Arch::Qwen2,
            (false, ..) => Arch::Llama,
            (true, ..) => return refuse("biases", "none in a model with QK-norm", "some".into()),
        };
        match &cfg.rope_scaling {
            RopeScaling::Llama3 { .. } | RopeScaling::Divisors(_) if arch != Arch::Llama => {
                refuse("rope_scaling", "default, linear or yarn in this architecture", "a table".into())
            }
            RopeScaling::Yarn(y) if y.attention.is_some() || y.truncate == Truncate::Exact => {
                refuse("rope_scaling", "yarn without attention_factor and with truncation", format!("{y:?}"))
            }
            RopeScaling::Yarn(y) if y.original.fract() != 0.0 => {
                let want = "a whole number of original positions in a GGUF file";
                refuse("rope_scaling", want, y.original.to_string())
            }
            _ => Ok(arch),
        }
    }
}

/// Reads the config of a file's model. `divisors` are the divisors of its RoPE frequencies.
pub(super) fn read(header: &Header, arch: Arch, divisors: Option<Vec<f32>>) -> Result<Config> {
    let meta = &header.metadata;
    let key = |name: &str| format!("{}.{name}", arch.name());
    let size = |name: &str| meta.required_size(&key(name));
    let tensor = |name: &str| header.tensors.iter().find(|entry| entry.name == name);
    let (dim, n_heads) = (size("embedding_length")?, size("attention.head_count")?);
    if n_heads == 0 {
        return Err(meta.bad(&key("attention.head_count"), "at least 1", 0));
    }
    let head_dim = meta.size(&key("attention.key_length"))?.unwrap_or(dim / n_heads);
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(other) = meta.size(&key(name))?.filter(|&n| n != head_dim) {
            return Err(meta.bad(&key(name), &format!("{head_dim}, the key length"), other));
        }
    }
    for name in ["expert_count", "attention.sliding_window"] {
        if let Some(n) = meta.size(&key(name))?.filter(|&n| n != 0) {
            return Err(meta.bad(&key(name), "0", n));
        }
    }
    require_plain(meta, &key, head_dim)?;
    let rows = tensor("token_embd.weight").and_then(|entry| entry.shape.first().copied());
    let vocab = meta.size(&key("vocab_size"))?.or(rows).unwrap_or(0);
    let number = |name: &str| Ok(meta.number(&key(name))?.map(shortest));
    let max_positions = size("context_length")?;
    let bias = |name: &str| tensor(&format!("blk.0.{name}.bias")).is_some();
    let cfg = Config {
        vocab,
        dim,
        ffn_dim: size("feed_forward_length")?,
        n_layers: size("block_count")?,
        n_heads,
        n_kv_heads: meta.size(&key("attention.head_count_kv"))?.unwrap_or(n_heads),
        head_dim,
        max_positions,
        rope_theta: number("rope.freq_base")?.unwrap_or(THETA),
        norm_eps: shortest(meta.required_number(&key("attention.layer_norm_rms_epsilon"))?),
        qk_norm: arch == Arch::Qwen3,
        tie_embeddings: tensor("output.weight").is_none(),
        biases: Biases {
            qkv: arch == Arch::Qwen2 || bias("attn_q"),
            o: bias("attn_output"),
            mlp: bias("ffn_gate"),
        },
        rope_scaling: RopeScaling::Default,
        windows: Vec::new(),
    };
    let cfg = Config { rope_scaling: scaling(meta, &key, &cfg, divisors)?, ..cfg };
    cfg.check().map_err(|error| meta.bad(arch.name(), "a valid model config", error))?;
    Ok(cfg)
}

/// Refuses keys of computations that the model does not have: another mask, scaled or limited values. A value of 0 means
/// that a computation is absent.
fn require_plain(meta: &Metadata, key: &impl Fn(&str) -> String, head_dim: usize) -> Result<()> {
    const CAUSAL: &str = "attention.causal";
    if faults::on(Fault::GgufComputationsIgnored) {
        return Ok(());
    }
    if meta.flag(&key(CAUSAL))? == Some(false) {
        return Err(meta.bad(&key(CAUSAL), "true", false));
    }
    let scale = f64::from(1.0 / (head_dim as f32).sqrt());
    let factors = ["logit_scale", "embedding_scale", "residual_scale", "rope.scaling.yarn_log_multiplier"];
    let limits = ["attention.clamp_kqv", "attn_logit_softcapping", "final_logit_softcapping"];
    let all = factors.map(|name| (name, 1.0)).into_iter().chain(limits.map(|name| (name, 0.0)));
    for (name, neutral) in all.chain([("attention.scale", scale)]) {
        let differs = |&x: &f64| x != 0.0 && (x - neutral).abs() > 1e-6 * neutral;
        if let Some(found) = meta.number(&key(name))?.filter(differs) {
            return Err(meta.bad(&key(name), &format!("{neutral} or absent"), found));
        }
    }
    Ok(())
}

/// The numbers of `cfg` that a GGUF file cannot hold, because it has them as f32: for each, its metadata key, and the
/// value in the model and in the file. A model with another value computes other logits.
///
/// # Errors
/// A model that no supported GGUF architecture can represent.
pub fn rounded_numbers(cfg: &Config) -> Result<Vec<(String, f64, f64)>, Error> {
    let rounded = |(key, value)| match value {
        Value::Float(x) if shortest(x) != x => Some((key, x, shortest(x))),
        _ => None,
    };
    Ok(write(cfg, Arch::of(cfg)?).into_iter().filter_map(rounded).collect())
}

/// The f64 of the shortest decimal that rounds to this f32: 1e-6, not 9.99999997e-7. It rounds to the same f32.
fn shortest(x: f64) -> f64 {
    (x as f32).to_string().parse().unwrap_or(x)
}

fn scaling(
    meta: &Metadata,
    key: &dyn Fn(&str) -> String,
    cfg: &Config,
    divisors: Option<Vec<f32>>,
) -> Result<RopeScaling> {
    let number = |name: &str| -> Result<Option<f64>> { Ok(meta.number(&key(name))?.map(shortest)) };
    let size = |name: &str| meta.size(&key(name));
    let kind = key("rope.scaling.type");
    let no_factor = || meta.bad(&key("rope.scaling.factor"), "a number", "none");
    let factor = || number("rope.scaling.factor")?.ok_or_else(no_factor);
    for name in ["scaling.attn_factor", "scaling.yarn_attn_factor", "scaling.yarn_ext_factor", "scale_linear"]
    {
        let key = key(&format!("rope.{name}"));
        if let Some(other) = meta.number(&key)?.filter(|&x| x != 1.0) {
            return Err(meta.bad(&key, "1", other));
        }
    }
    // a factor without a type is linear, as in llama.cpp
    let scaled = number("rope.scaling.factor")?.is_some_and(|factor| factor != 0.0 && factor != 1.0);
    match (meta.text(&kind)?.or(scaled.then_some("linear")), divisors) {
        (None | Some("none"), None) => Ok(RopeScaling::Default),
        // divisors that a converter rounded otherwise are a rule of their own
        (None | Some("none"), Some(divisors)) => {
            let mut rule = rope_divisors::exact_rule(cfg, &divisors);
            if faults::on(Fault::RopeDivisorsRenamed) {
                rule = rope_divisors::rule_within_rounding(cfg, &divisors);
            }
            Ok(rule.unwrap_or(RopeScaling::Divisors(divisors)))
        }
        (Some("linear"), None) => Ok(RopeScaling::Linear { factor: factor()? }),
        (Some("yarn"), None) => Ok(RopeScaling::Yarn(Yarn {
            factor: factor()?,
            original: size("rope.scaling.original_context_length")?.unwrap_or(cfg.max_positions) as f64,
            beta_fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            attention: None,
            truncate: Truncate::Whole,
        })),
        (Some(other), None) => Err(meta.bad(&kind, "none, linear or yarn", format!("{other:?}"))),
        (Some(other), Some(_)) => {
            Err(meta.bad(&kind, &format!("none in a file with {DIVISORS}"), format!("{other:?}")))
        }
    }
}

/// The metadata of a model config, in the order of llama.cpp's converter.
pub(super) fn write(cfg: &Config, arch: Arch) -> Vec<(String, Value)> {
    let int = |n: usize| Value::Int(n as i64);
    let mut values = vec![
        ("block_count", int(cfg.n_layers)),
        ("context_length", int(cfg.max_positions)),
        ("embedding_length", int(cfg.dim)),
        ("feed_forward_length", int(cfg.ffn_dim)),
        ("attention.head_count", int(cfg.n_heads)),
        ("attention.head_count_kv", int(cfg.n_kv_heads)),
        ("rope.freq_base", Value::Float(cfg.rope_theta)),
        ("attention.layer_norm_rms_epsilon", Value::Float(cfg.norm_eps)),
        ("attention.key_length", int(cfg.head_dim)),
        ("attention.value_length", int(cfg.head_dim)),
        ("vocab_size", int(cfg.vocab)),
        ("rope.dimension_count", int(cfg.head_dim)),
    ];
    match &cfg.rope_scaling {
        RopeScaling::Linear { factor } => values.extend([
            ("rope.scaling.type", Value::String("linear".into())),
            ("rope.scaling.factor", Value::Float(*factor)),
        ]),
        RopeScaling::Yarn(yarn) => values.extend([
            ("rope.scaling.type", Value::String("yarn".into())),
            ("rope.scaling.factor", Value::Float(yarn.factor)),
            ("rope.scaling.original_context_length", int(yarn.original as usize)),
            ("rope.scaling.yarn_beta_fast", Value::Float(yarn.beta_fast)),
            ("rope.scaling.yarn_beta_slow", Value::Float(yarn.beta_slow)),
        ]),
        RopeScaling::Default | RopeScaling::Llama3 { .. } | RopeScaling::Divisors(_) => {}
    }
    values.into_iter().map(|(name, value)| (format!("{}.{name}", arch.name()), value)).collect()
}

/// The tensor with the divisors of a file: one for each pair of a head.
pub(super) fn divisors_of(header: &Header, arch: Arch) -> Option<&Entry> {
    header.tensors.iter().find(|entry| arch == Arch::Llama && entry.name == DIVISORS)
}
