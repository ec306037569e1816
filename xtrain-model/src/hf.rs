//! Hugging Face's `config.json`: read in both spellings (transformers 4 and 5), written so that both
//! read it.
use serde_json::{Value, json};

use crate::config::Config;
use crate::error::{Error, Result};

/// The config as a `config.json`: `qwen3`, or `llama` for a model without norms of queries and keys.
/// `eos` are the ids that end a text.
pub fn to_json(cfg: &Config, eos: &[u32]) -> Value {
    let (model_type, architecture) = match cfg.qk_norm {
        true => ("qwen3", "Qwen3ForCausalLM"),
        false => ("llama", "LlamaForCausalLM"),
    };
    let eos = match eos {
        [] => Value::Null,
        [id] => json!(id),
        ids => json!(ids),
    };
    json!({
        "architectures": [architecture],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": null,
        "dtype": "float32",
        "eos_token_id": eos,
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
        "rope_parameters": {"rope_theta": cfg.rope_theta, "rope_type": "default"},
        "rope_scaling": null,
        "rope_theta": cfg.rope_theta,
        "tie_word_embeddings": cfg.tie_embeddings,
        "torch_dtype": "float32",
        "use_cache": true,
        "use_sliding_window": false,
        "vocab_size": cfg.vocab,
    })
}

/// The ids of `eos_token_id`: a number or a list.
pub fn eos_ids(json: &Value) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|x| u32::try_from(x).ok());
    match &json["eos_token_id"] {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

/// Reads a `config.json` of a family that the forward serves; what it does not serve is refused here,
/// by name.
///
/// # Errors
/// [`Error::Config`] with the field, what it must be and what it is.
pub fn from_json(json: &Value) -> Result<Config> {
    let kind = json["model_type"].as_str().unwrap_or("none");
    let qk_norm = match kind {
        "qwen3" => true,
        "llama" => false,
        _ => return refuse("model_type", "qwen3 or llama", kind),
    };
    only(json, "hidden_act", "silu", |v| v.as_str() == Some("silu"))?;
    only(json, "attention_bias", "false", |v| v.as_bool() == Some(false))?;
    only(json, "mlp_bias", "false", |v| v.as_bool() == Some(false))?;
    only(json, "use_sliding_window", "false", |v| v.as_bool() == Some(false))?;
    only(json, "quantization_config", "absent", |_| false)?;
    let rope = [&json["rope_parameters"], &json["rope_scaling"]].into_iter().find(|v| v.is_object());
    if let Some(rope) = rope {
        for key in ["rope_type", "type"] {
            only(rope, key, "default", |v| v.as_str() == Some("default"))?;
        }
    }
    let theta = rope.and_then(|r| r["rope_theta"].as_f64()).or(json["rope_theta"].as_f64());
    let n_heads = size(json, "num_attention_heads", None)?;
    let dim = size(json, "hidden_size", None)?;
    let cfg = Config {
        vocab: size(json, "vocab_size", None)?,
        dim,
        ffn_dim: size(json, "intermediate_size", None)?,
        n_layers: size(json, "num_hidden_layers", None)?,
        n_heads,
        n_kv_heads: size(json, "num_key_value_heads", Some(n_heads))?,
        head_dim: size(json, "head_dim", Some(dim.checked_div(n_heads).unwrap_or(0)))?,
        max_positions: size(json, "max_position_embeddings", None)?,
        rope_theta: theta.unwrap_or(10_000.0),
        norm_eps: json["rms_norm_eps"].as_f64().unwrap_or(f64::NAN),
        qk_norm,
        tie_embeddings: json["tie_word_embeddings"].as_bool().unwrap_or(false),
    };
    cfg.check()?;
    Ok(cfg)
}

fn refuse<T>(field: &'static str, want: &'static str, got: impl ToString) -> Result<T> {
    Err(Error::Config { field, want, got: got.to_string() })
}

/// Refuses a field that is there and says something that the forward does not do.
fn only(json: &Value, field: &'static str, want: &'static str, fits: fn(&Value) -> bool) -> Result<()> {
    match &json[field] {
        Value::Null => Ok(()),
        value if fits(value) => Ok(()),
        value => refuse(field, want, value),
    }
}

fn size(json: &Value, field: &'static str, absent: Option<usize>) -> Result<usize> {
    match (&json[field], absent) {
        (Value::Null, Some(size)) => Ok(size),
        (value, _) => match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Ok(n),
            None => refuse(field, "a whole number", value),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json() -> Value {
        serde_json::from_str(include_str!("../../tests/data/models/qwen3_tied/config.json")).unwrap()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let cfg = from_json(&json()).unwrap();
        assert_eq!(from_json(&to_json(&cfg, &[2])).unwrap(), cfg);
        assert_eq!((eos_ids(&to_json(&cfg, &[2, 5])), eos_ids(&json())), (vec![2, 5], vec![2]));
    }

    #[test]
    fn both_spellings_are_one_config() {
        let old = include_str!("../../tests/data/models/qwen3_tied/config_v4.json");
        assert_eq!(from_json(&serde_json::from_str(old).unwrap()).unwrap(), from_json(&json()).unwrap());
    }

    #[test]
    fn what_is_not_served_is_refused_by_name() {
        for (field, value) in [
            ("model_type", json!("gpt2")),
            ("hidden_act", json!("gelu")),
            ("attention_bias", json!(true)),
            ("quantization_config", json!({"bits": 4})),
            ("hidden_size", json!("64")),
            ("num_hidden_layers", json!(0)),
            ("head_dim", json!(15)),
            ("rms_norm_eps", json!("nan")),
        ] {
            let mut j = json();
            j[field] = value;
            let err = from_json(&j).unwrap_err().to_string();
            assert!(
                err.contains(&field[..4]) || err.contains("n_layers") || err.contains("norm_eps"),
                "{field}: {err}"
            );
        }
    }
}
