//! `config.json` of Hugging Face: what each field with each kind of value changes, or its error.
use serde_json::{Map, Value, json};
use xtrain::model::hf;

use crate::Record;

const FAMILIES: [&str; 4] = ["qwen3", "qwen2", "llama", "mistral"];

/// The smallest valid file of a family.
fn base(family: &str) -> Map<String, Value> {
    let Value::Object(object) = json!({
        "model_type": family,
        "hidden_size": 12,
        "intermediate_size": 9,
        "max_position_embeddings": 64,
        "num_attention_heads": 6,
        "num_hidden_layers": 3,
        "rms_norm_eps": 1e-6,
        "vocab_size": 21,
    }) else {
        unreachable!()
    };
    object
}

/// The fields that all families read.
const FIELDS: [&str; 36] = [
    "model_type",
    "hidden_act",
    "attention_dropout",
    "use_mrope",
    "is_causal",
    "is_encoder_decoder",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "quantization_config",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attention_multiplier",
    "clip_qkv",
    "num_experts",
    "num_local_experts",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "vocab_size",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "use_sliding_window",
    "sliding_window",
    "max_window_layers",
    "layer_types",
];

fn values() -> [Value; 13] {
    [
        Value::Null,
        json!(false),
        json!(true),
        json!(0),
        json!(1),
        json!(2),
        json!(-1),
        json!(1.0),
        json!(0.5),
        json!(1u64 << 40),
        json!("silu"),
        json!([]),
        json!({}),
    ]
}

/// The fields of RoPE: parts of an object `rope_parameters`, and other fields beside it.
fn ropes() -> Vec<Value> {
    let yarn = |more: Value| {
        let mut rope = json!({"rope_type": "yarn", "factor": 4.0});
        rope.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"rope_parameters": rope})
    };
    let llama3 = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4});
    let mut all = vec![
        json!({"rope_parameters": {"rope_theta": 5.0}, "rope_theta": 7.0}),
        json!({"rope_parameters": {}, "rope_theta": 7.0}),
        json!({"rope_parameters": {"rope_theta": "5"}}),
        json!({"rope_parameters": {"partial_rotary_factor": 0.5}}),
        json!({"rope_parameters": {"partial_rotary_factor": 1}}),
        json!({"rope_scaling": {"type": "linear", "factor": 2}}),
        json!({"rope_scaling": {"type": "linear"}}),
        json!({"rope_scaling": {"type": "linear", "factor": "2"}}),
        json!({"rope_scaling": {"type": "linear", "rope_type": "default", "factor": 2}}),
        json!({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}),
        json!({"rope_scaling": {"rope_type": 5}}),
        json!({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "linear", "factor": 2}}),
        json!({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "linear", "factor": 3}}),
        json!({"rope_scaling": null, "rope_parameters": {"rope_type": "linear", "factor": 3}}),
        json!({"rope_scaling": llama3}),
        json!({"rope_scaling": llama3, "original_max_position_embeddings": 16}),
        json!({"rope_parameters": {"rope_type": "divisors"}}),
        json!({"rope_parameters": {"rope_type": "divisors", "divisors": [1.0]}}),
        json!({"rope_parameters": {"rope_type": "divisors", "divisors": [1.0, "2"]}}),
        json!({"rope_parameters": {"rope_type": "divisors", "divisors": [1e39]}}),
    ];
    for field in ["factor", "low_freq_factor", "high_freq_factor"] {
        let mut without = llama3.clone();
        without.as_object_mut().unwrap().remove(field);
        all.push(json!({"rope_scaling": without}));
    }
    for more in [
        json!({}),
        json!({"factor": null}),
        json!({"factor": null, "original_max_position_embeddings": 16}),
        json!({"original_max_position_embeddings": 16}),
        json!({"mscale": 1.0}),
        json!({"mscale": 1.0, "mscale_all_dim": 0.0}),
        json!({"mscale": 0.0, "mscale_all_dim": 1.0}),
        json!({"mscale": 1.0, "mscale_all_dim": 2.0}),
        json!({"beta_fast": 16, "beta_slow": 2}),
        json!({"beta_fast": 0, "beta_slow": 0}),
        json!({"attention_factor": 1.5}),
        json!({"truncate": true}),
        json!({"truncate": false}),
        json!({"truncate": 1}),
    ] {
        all.push(yarn(more));
    }
    all
}

/// Windows and biases, which depend on the family.
fn windows() -> Vec<Value> {
    let types = |kinds: &[&str]| kinds.iter().map(|kind| format!("{kind}_attention")).collect::<Vec<_>>();
    let mut all = vec![json!({}), json!({"attention_bias": true}), json!({"mlp_bias": true})];
    all.push(json!({"attention_bias": true, "mlp_bias": true}));
    all.push(json!({"head_dim": 4, "num_key_value_heads": 2, "tie_word_embeddings": true}));
    for switch in [Value::Null, json!(false), json!(true)] {
        for window in [json!({}), json!({"sliding_window": null}), json!({"sliding_window": 7})] {
            for more in [
                json!({}),
                json!({"max_window_layers": 1}),
                json!({"max_window_layers": 0}),
                json!({"layer_types": types(&["full", "sliding", "full"])}),
                json!({"layer_types": types(&["full", "full", "full"])}),
                json!({"layer_types": types(&["sliding", "sliding", "sliding"]), "max_window_layers": 2}),
                json!({"layer_types": types(&["full", "sliding"])}),
                json!({"layer_types": types(&["full", "chunked", "full"])}),
            ] {
                let mut fields = Map::new();
                if !switch.is_null() {
                    fields.insert("use_sliding_window".into(), switch.clone());
                }
                for part in [&window, &more] {
                    fields.extend(part.as_object().unwrap().clone());
                }
                all.push(Value::Object(fields));
            }
        }
    }
    all
}

/// What `edit` changes of a configuration: the lines of its fields, or the error. What is read is the same after it was
/// written and read again.
fn changed(family: &str, edit: &Value) -> String {
    let lines = |json: &Value| -> xtrain::model::Result<_> {
        let cfg = hf::from_json(json)?;
        let lines: Vec<String> = format!("{cfg:?}").split(", ").map(str::to_string).collect();
        Ok((cfg, lines))
    };
    let mut file = base(family);
    let (_, before) = lines(&Value::Object(file.clone())).unwrap();
    file.extend(edit.as_object().unwrap().clone());
    let (cfg, after) = match lines(&Value::Object(file)) {
        Ok(found) => found,
        Err(error) => return error.to_string(),
    };
    let written = match hf::to_json(&cfg, &[]) {
        Ok(json) => {
            assert_eq!(hf::from_json(&json).unwrap(), cfg, "{family} {edit}");
            ""
        }
        Err(error) => &format!("; {error}"),
    };
    let new: Vec<&str> = after.iter().filter(|line| !before.contains(line)).map(String::as_str).collect();
    let found = if new.is_empty() { "no change".to_string() } else { new.join(", ") };
    found + written
}

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    for field in FIELDS {
        out.section(format!("mistral: {field}"));
        for value in values() {
            out.line(format!("{value}: {}", changed("mistral", &json!({field: value}))));
        }
    }
    out.section("llama: RoPE");
    for edit in ropes() {
        out.line(format!("{edit}: {}", changed("llama", &edit)));
    }
    for family in FAMILIES {
        out.section(format!("{family}: biases, heads and windows"));
        for edit in windows() {
            out.line(format!("{edit}: {}", changed(family, &edit)));
        }
    }
    out.section("end-of-text ids");
    for ids in [
        json!(null),
        json!(5),
        json!([]),
        json!([1, 7]),
        json!("5"),
        json!([1, "7"]),
        json!(-1),
        json!(1u64 << 32),
    ] {
        let found = hf::eos_ids(&json!({"eos_token_id": ids})).map_err(|error| error.to_string());
        out.line(format!("{ids}: {found:?} {}", hf::eos_json(found.as_deref().unwrap_or_default())));
    }
    out
}
