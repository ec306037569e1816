//! The gate for RoPE scaling: cosines and sines of YaRN against a computation with 60 decimal digits.
use serde_json::{Value, json};
use xtrain::model::hf;
use xtrain::tensor::RopeTable;

use crate::fixtures;

/// The seed that failure messages name: the cases are fixed.
const SEED: u64 = 0;

/// The `config.json` of a case of tests/data/rope/yarn.json.
fn config(case: &Value) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": case["head_dim"],
        "vocab_size": 32,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": case["rope_theta"],
            "factor": case["factor"],
            "original_max_position_embeddings": case["original"],
            "beta_fast": case["beta_fast"],
            "beta_slow": case["beta_slow"],
            "truncate": case["truncate"],
        },
    })
}

/// The values of a list as f32: one rounding of the f64 nearest to the exact value.
fn values(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// Reads each configuration and compares the bits of its cosines and sines, also after it was written and read again.
/// Returns the number of compared values.
pub(crate) fn over() -> Result<usize, String> {
    let mut compared = 0;
    for case in fixtures::json("rope/yarn.json").as_array().unwrap() {
        let first = hf::from_json(&config(case)).map_err(|e| e.to_string())?;
        let again =
            hf::to_json(&first, &[]).and_then(|json| hf::from_json(&json)).map_err(|e| e.to_string())?;
        for (read, cfg) in [("read once", first), ("written and read again", again)] {
            let table = RopeTable::scaled(cfg.rope_theta, &cfg.rope_scaling, cfg.head_dim, cfg.max_positions);
            let table = table.map_err(|e| e.to_string())?;
            for row in case["rows"].as_array().unwrap() {
                let position = row["position"].as_u64().unwrap() as usize;
                let (cos, sin) = table.row(position);
                for (name, got, want) in
                    [("cos", cos, values(&row["cos"])), ("sin", sin, values(&row["sin"]))]
                {
                    assert_eq!(got.len(), want.len(), "{case}");
                    if let Some(pair) = (0..want.len()).find(|&i| got[i].to_bits() != want[i].to_bits()) {
                        let (got, want) = (got[pair], want[pair]);
                        return Err(format!(
                            "gate yarn, seed {SEED}: head_dim {}, truncate {}, {read}: {name} of position \
                             {position}, pair {pair}: got {got:e} ({:08x}), want {want:e} ({:08x})",
                            case["head_dim"],
                            case["truncate"],
                            got.to_bits(),
                            want.to_bits(),
                        ));
                    }
                    compared += want.len();
                }
            }
        }
    }
    Ok(compared)
}

/// Compares the cosines of position 0, which are the attention factor, with and without a given factor. Returns the
/// number of compared values.
pub(crate) fn attention() -> Result<usize, String> {
    let case = &fixtures::json("rope/yarn.json")[0];
    let default = 0.1 * case["factor"].as_f64().unwrap().ln() + 1.0;
    let mut compared = 0;
    for (given, want) in [(Some(1.0), 1.0), (Some(0.75), 0.75), (None, default)] {
        let mut config = config(case);
        if let Some(given) = given {
            config["rope_parameters"]["attention_factor"] = json!(given);
        }
        let cfg = hf::from_json(&config).map_err(|e| e.to_string())?;
        let again =
            hf::to_json(&cfg, &[]).and_then(|json| hf::from_json(&json)).map_err(|e| e.to_string())?;
        for cfg in [cfg, again] {
            let table = RopeTable::scaled(cfg.rope_theta, &cfg.rope_scaling, cfg.head_dim, cfg.max_positions);
            let table = table.map_err(|e| e.to_string())?;
            let (cos, sin) = table.row(0);
            if let Some(got) = cos.iter().find(|cos| cos.to_bits() != (want as f32).to_bits()) {
                let (bits, wanted) = (got.to_bits(), (want as f32).to_bits());
                let given = format!("attention_factor {given:?}");
                return Err(format!(
                    "gate yarn, seed {SEED}: {given}: got {got:e} ({bits:08x}), want {want:e} ({wanted:08x})"
                ));
            }
            assert!(sin.iter().all(|sin| *sin == 0.0), "{given:?}: {sin:?}");
            compared += cos.len();
        }
    }
    Ok(compared)
}

#[test]
fn a_given_attention_factor_of_yarn_replaces_the_default() {
    let n = attention().unwrap_or_else(|e| panic!("{e}"));
    println!("yarn: {n} attention factors, 0 differ");
}

#[test]
fn cosines_and_sines_of_yarn_are_the_nearest_f32_with_and_without_truncate() {
    let n = over().unwrap_or_else(|e| panic!("{e}"));
    println!("yarn: {n} values, 0 differ");
    // 4 + 32 + 8 + 8 pairs, 4 positions, cosines and sines, with and without truncate, read twice
    assert_eq!(n, 52 * 4 * 2 * 2 * 2);
}
