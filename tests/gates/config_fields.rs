//! Fields of `config.json` that are absent, or in another place than usual, have the values of transformers.
use serde_json::{Value, json};
use xtrain::model::{Config, hf};
use xtrain::tensor::RopeScaling;

use crate::fixtures;

/// The config of a family from the fixture of Qwen3, with a change.
fn of(family: &str, change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Config {
    let mut json = fixtures::json("models/qwen3_tied/config.json");
    json["model_type"] = json!(family);
    change(json.as_object_mut().unwrap());
    hf::from_json(&json).unwrap()
}

/// The default head size: 128 for Qwen3 (`Qwen3Config`), `hidden_size / num_attention_heads` for the others.
pub(crate) fn head_sizes() -> Result<usize, String> {
    let families = [("qwen3", 128), ("qwen2", 16), ("llama", 16), ("mistral", 16)];
    for (family, want) in families {
        let cfg = of(family, |json| {
            (json["hidden_size"], json["num_attention_heads"]) = (json!(64), json!(4));
            json["num_key_value_heads"] = json!(2);
            json.remove("head_dim");
        });
        if cfg.head_dim != want {
            return Err(format!(
                "gate config fields, seed 0: {family} without head_dim: expected {want}, found {}",
                cfg.head_dim
            ));
        }
    }
    Ok(families.len())
}

/// A switch that is not a boolean is refused by name.
pub(crate) fn switches() -> Result<usize, String> {
    const SWITCHES: [&str; 4] = ["attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window"];
    for field in SWITCHES {
        for value in [json!("true"), json!("false"), json!(1), json!([])] {
            let mut json = fixtures::json("models/qwen3_tied/config.json");
            json[field] = value.clone();
            let found = hf::from_json(&json).map_or_else(|error| error.to_string(), |_| "no error".into());
            if !found.contains(&format!("{field} must be true or false")) {
                return Err(format!("gate config fields, seed 0: {field}: {value}: found {found:?}"));
            }
        }
    }
    Ok(SWITCHES.len())
}

/// The original context length of YaRN and of Llama 3: the field of the scaling, else that of the model, else the
/// context length of the model.
pub(crate) fn original_positions() -> Result<usize, String> {
    const FIELD: &str = "original_max_position_embeddings";
    let mut checked = 0;
    for kind in ["yarn", "llama3"] {
        for (inner, outer, want) in
            [(Some(32), Some(32), 32.0), (Some(32), None, 32.0), (None, Some(64), 64.0), (None, None, 256.0)]
        {
            let cfg = of("llama", |json| {
                let mut rope = json!({"rope_type": kind, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
                rope[FIELD] = json!(inner);
                json["max_position_embeddings"] = json!(256);
                json.insert(FIELD.into(), json!(outer));
                json.insert("rope_parameters".into(), rope);
            });
            let found = match cfg.rope_scaling {
                RopeScaling::Yarn(yarn) => yarn.original,
                RopeScaling::Llama3 { original, .. } => original,
                other => return Err(format!("gate config fields, seed 0: {kind}: found {other:?}")),
            };
            if found != want {
                return Err(format!(
                    "gate config fields, seed 0: {kind}, {FIELD} {inner:?} in the scaling and {outer:?} in the model: \
                     expected {want}, found {found}"
                ));
            }
            checked += 1;
        }
    }
    Ok(checked)
}

#[test]
fn a_switch_that_is_not_a_boolean_is_refused() {
    switches().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn an_absent_head_size_is_that_of_the_family() {
    head_sizes().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_original_context_length_may_be_a_field_of_the_model() {
    original_positions().unwrap_or_else(|e| panic!("{e}"));
}
