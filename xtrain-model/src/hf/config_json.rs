//! Conversion between [`Config`] and `config.json`.
use serde_json::{Value, json};
use xtrain_tensor::faults::{self, Fault};

use crate::config::{Biases, Config};
use crate::error::{Error, Result};

use super::fields::{flag, only, refuse, size};
use super::rope;
use super::windows::{self, WindowRule};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Qwen3,
    Qwen2,
    Llama,
    Mistral,
}

impl Family {
    /// The `model_type` and the class in `architectures`.
    fn names(self) -> [&'static str; 2] {
        match self {
            Family::Qwen3 => ["qwen3", "Qwen3ForCausalLM"],
            Family::Qwen2 => ["qwen2", "Qwen2ForCausalLM"],
            Family::Llama => ["llama", "LlamaForCausalLM"],
            Family::Mistral => ["mistral", "MistralForCausalLM"],
        }
    }

    fn window_rule(self) -> WindowRule {
        match self {
            Family::Qwen3 | Family::Qwen2 => WindowRule::Switched,
            Family::Llama => WindowRule::Never,
            Family::Mistral => WindowRule::Always,
        }
    }

    /// The family that can represent `cfg`.
    fn of(cfg: &Config) -> Result<Family> {
        let windowed = cfg.windows.iter().any(Option::is_some);
        match (cfg.qk_norm, cfg.biases) {
            (true, Biases { qkv, o, mlp: false }) if qkv == o => Ok(Family::Qwen3),
            (false, Biases { qkv: true, o: false, mlp: false }) => Ok(Family::Qwen2),
            (false, Biases { qkv: false, o: false, mlp: false }) if windowed => Ok(Family::Mistral),
            (false, Biases { qkv, o, .. }) if qkv == o => Ok(Family::Llama),
            (_, biases) => refuse("biases", "those of a supported family", format!("{biases:?}")),
        }
    }
}

/// Converts the config to a `config.json` of the family that supports its norms, biases and windows. `eos` are the
/// end-of-text ids.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for biases or windows that no family supports.
pub fn to_json(cfg: &Config, eos: &[u32]) -> Result<Value> {
    let family = Family::of(cfg)?;
    let [model_type, architecture] = family.names();
    let rope = rope::write(cfg);
    let scaling = if rope["rope_type"] == "default" { Value::Null } else { rope.clone() };
    let mut json = json!({
        "architectures": [architecture],
        "attention_dropout": 0.0,
        "bos_token_id": null,
        "dtype": "float32",
        "eos_token_id": eos_json(eos),
        "head_dim": cfg.head_dim,
        "hidden_act": "silu",
        "hidden_size": cfg.dim,
        "initializer_range": 0.02,
        "intermediate_size": cfg.ffn_dim,
        "max_position_embeddings": cfg.max_positions,
        "model_type": model_type,
        "num_attention_heads": cfg.n_heads,
        "num_hidden_layers": cfg.n_layers,
        "num_key_value_heads": cfg.n_kv_heads,
        "rms_norm_eps": cfg.norm_eps,
        "rope_parameters": rope,
        "rope_scaling": scaling,
        "rope_theta": cfg.rope_theta,
        "tie_word_embeddings": cfg.tie_embeddings,
        "torch_dtype": "float32",
        "use_cache": true,
        "vocab_size": cfg.vocab,
    });
    if matches!(family, Family::Qwen3 | Family::Llama) {
        json["attention_bias"] = json!(cfg.biases.qkv);
    }
    if family == Family::Llama {
        json["mlp_bias"] = json!(cfg.biases.mlp);
    }
    windows::write(&mut json, family.window_rule(), cfg)?;
    Ok(json)
}

/// The value of `eos_token_id` for `eos`: null, a number or a list.
pub fn eos_json(eos: &[u32]) -> Value {
    match eos {
        [] => Value::Null,
        [id] => json!(id),
        ids => json!(ids),
    }
}

/// The ids of `eos_token_id` in a `config.json` or a `generation_config.json`: a number or a list. Empty if the field
/// is absent or null.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for any other value.
pub fn eos_ids(json: &Value) -> Result<Vec<u32>> {
    let id = |v: &Value| match v.as_u64().and_then(|x| u32::try_from(x).ok()) {
        Some(id) => Ok(id),
        None => refuse("eos_token_id", "an id or a list of ids", v),
    };
    match &json["eos_token_id"] {
        Value::Null => Ok(Vec::new()),
        Value::Array(ids) => ids.iter().map(id).collect(),
        one => Ok(vec![id(one)?]),
    }
}

/// Factors that the forward pass does not support. They must be 1 or absent.
pub(super) const UNIT_FACTORS: [&str; 3] = ["embedding_multiplier", "residual_multiplier", "logits_scaling"];

/// Fields that the forward pass does not support. They must be absent.
const UNSUPPORTED: [&str; 7] = [
    "quantization_config",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attention_multiplier",
    "clip_qkv",
    "num_experts",
    "num_local_experts",
];

/// Reads a `config.json` of a supported family. Rejects unsupported fields by name.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) with the field, its valid values and its value.
pub fn from_json(json: &Value) -> Result<Config> {
    let kind = json["model_type"].as_str().unwrap_or("none");
    let families = [Family::Qwen3, Family::Qwen2, Family::Llama, Family::Mistral];
    let Some(family) = families.into_iter().find(|family| family.names()[0] == kind) else {
        return refuse("model_type", "qwen3, qwen2, llama or mistral", kind);
    };
    only(json, "hidden_act", "silu", |v| v.as_str() == Some("silu"))?;
    only(json, "attention_dropout", "0", |v| v.as_f64() == Some(0.0))?;
    only(json, "use_mrope", "false", |v| v.as_bool() == Some(false))?;
    let is_true = |v: &Value| v.as_bool() == Some(true) || faults::on(Fault::CausalFieldIgnored);
    only(json, "is_causal", "true", is_true)?;
    only(json, "is_encoder_decoder", "false", |v| v.as_bool() == Some(false))?;
    UNIT_FACTORS
        .iter()
        .try_for_each(|field| only(json, field, "1 or absent", |v| v.as_f64() == Some(1.0)))?;
    UNSUPPORTED.iter().try_for_each(|field| only(json, field, "absent", |_| false))?;
    let n_heads = size(json, "num_attention_heads", None)?;
    let dim = size(json, "hidden_size", None)?;
    let n_layers = size(json, "num_hidden_layers", None)?;
    let max_positions = size(json, "max_position_embeddings", None)?;
    let (rope_theta, rope_scaling) = rope::read(json, max_positions)?;
    let head_dim = match family {
        Family::Qwen3 if !faults::on(Fault::HeadSizeOfOtherFamilies) => 128,
        _ => dim.checked_div(n_heads).unwrap_or(0),
    };
    let cfg = Config {
        vocab: size(json, "vocab_size", None)?,
        dim,
        ffn_dim: size(json, "intermediate_size", None)?,
        n_layers,
        n_heads,
        n_kv_heads: size(json, "num_key_value_heads", Some(n_heads))?,
        head_dim: size(json, "head_dim", Some(head_dim))?,
        max_positions,
        rope_theta,
        norm_eps: match json["rms_norm_eps"].as_f64() {
            Some(eps) => eps,
            None => return refuse("rms_norm_eps", "a number", &json["rms_norm_eps"]),
        },
        qk_norm: family == Family::Qwen3,
        tie_embeddings: flag(json, "tie_word_embeddings")?,
        biases: biases(json, family)?,
        rope_scaling,
        windows: match n_layers {
            // do not allocate a list for an invalid number of layers, which `check` rejects below
            1..=1024 => windows::read(json, family.window_rule(), n_layers)?,
            _ => Vec::new(),
        },
    };
    cfg.check().map_err(in_names_of_file)?;
    Ok(cfg)
}

/// The error of a field with its name in `config.json`.
fn in_names_of_file(error: Error) -> Error {
    const NAMES: [(&str, &str); 8] = [
        ("vocab", "vocab_size"),
        ("dim", "hidden_size"),
        ("ffn_dim", "intermediate_size"),
        ("n_layers", "num_hidden_layers"),
        ("n_heads", "num_attention_heads"),
        ("n_kv_heads", "num_key_value_heads"),
        ("max_positions", "max_position_embeddings"),
        ("norm_eps", "rms_norm_eps"),
    ];
    match error {
        Error::Config { field, want, got } => {
            let field = NAMES.iter().find(|(ours, _)| *ours == field).map_or(field, |(_, theirs)| theirs);
            Error::Config { field, want, got }
        }
        other => other,
    }
}

fn biases(json: &Value, family: Family) -> Result<Biases> {
    let (attention, mlp) = (flag(json, "attention_bias")?, flag(json, "mlp_bias")?);
    if attention && matches!(family, Family::Qwen2 | Family::Mistral) {
        return refuse("attention_bias", "false in this family", true);
    }
    if mlp && family != Family::Llama {
        return refuse("mlp_bias", "false in this family", true);
    }
    Ok(Biases { qkv: attention || family == Family::Qwen2, o: attention, mlp })
}
