//! Tests of reading and writing `config.json`.
use rand::RngExt as _;
use serde_json::{Value, json};
use xtrain_tensor::RopeScaling;
#[cfg(feature = "faults")]
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::testing::{alone, times};

use super::config_json::UNIT_FACTORS;
use super::*;
use crate::config::{Biases, Config};
use crate::error::Result;
use crate::test_memory::with_little_memory;
use crate::test_rng::rng;

fn json() -> Value {
    serde_json::from_str(include_str!("../../../tests/data/models/qwen3_tied/config.json")).unwrap()
}

/// The config of a family with a change.
fn of(kind: &str, change: impl FnOnce(&mut Value)) -> Result<Config> {
    let mut json = json();
    json["model_type"] = json!(kind);
    change(&mut json);
    from_json(&json)
}

/// Checks that a written config is read back unchanged, in the spelling of transformers 5 and of 4.
#[track_caller]
fn round_trip(cfg: &Config) {
    let mut json = to_json(cfg, &[2]).unwrap();
    assert_eq!(from_json(&json).unwrap(), *cfg, "{json:#}");
    let mut new = json.clone();
    new.as_object_mut().unwrap().retain(|key, _| key != "rope_theta" && key != "rope_scaling");
    assert_eq!(from_json(&new).unwrap(), *cfg, "{new:#}");
    json["rope_parameters"] = Value::Null;
    json["layer_types"] = Value::Null;
    assert_eq!(from_json(&json).unwrap(), *cfg, "{json:#}");
}

#[test]
fn a_written_config_is_read_back() {
    round_trip(&from_json(&json()).unwrap());
    let ids = |ids: &[u32]| eos_ids(&to_json(&from_json(&json()).unwrap(), ids).unwrap()).unwrap();
    assert_eq!((ids(&[2, 5]), ids(&[2]), ids(&[])), (vec![2, 5], vec![2], vec![]));
    assert_eq!(eos_ids(&json()).unwrap(), [2]);
    assert!(eos_ids(&json!({"eos_token_id": ["a"]})).is_err());
    assert!(eos_ids(&json!({"eos_token_id": -1})).is_err());
}

#[test]
fn both_spellings_give_the_same_config() {
    let old = include_str!("../../../tests/data/models/qwen3_tied/config_v4.json");
    assert_eq!(from_json(&serde_json::from_str(old).unwrap()).unwrap(), from_json(&json()).unwrap());
}

#[test]
fn each_family_has_its_biases() {
    let biases = |kind, attention: Option<bool>, mlp: Option<bool>| {
        let cfg = of(kind, |j| {
            (j["attention_bias"], j["mlp_bias"]) = (json!(attention), json!(mlp));
        });
        cfg.map(|cfg| {
            round_trip(&cfg);
            (cfg.qk_norm, [cfg.biases.qkv, cfg.biases.o, cfg.biases.mlp])
        })
    };
    assert_eq!(biases("qwen3", None, None).unwrap(), (true, [false; 3]));
    assert_eq!(biases("qwen3", Some(true), None).unwrap(), (true, [true, true, false]));
    assert_eq!(biases("qwen2", None, None).unwrap(), (false, [true, false, false]));
    assert_eq!(biases("llama", Some(false), Some(false)).unwrap(), (false, [false; 3]));
    assert_eq!(biases("llama", Some(true), Some(true)).unwrap(), (false, [true; 3]));
    assert_eq!(biases("llama", Some(false), Some(true)).unwrap(), (false, [false, false, true]));
    assert!(biases("mistral", Some(true), None).is_err());
    let error = biases("qwen2", None, Some(true)).unwrap_err().to_string();
    assert!(error.contains("mlp_bias must be false in this family"), "{error}");
}

#[test]
fn each_family_has_its_windows() {
    let windows = |kind, change: fn(&mut Value)| {
        let cfg = of(kind, |j| {
            j.as_object_mut().unwrap().remove("layer_types");
            j["num_hidden_layers"] = json!(3);
            change(j);
        });
        cfg.map(|cfg| {
            round_trip(&cfg);
            cfg.windows
        })
    };
    assert!(windows("qwen2", |_| ()).unwrap().is_empty());
    assert!(windows("llama", |j| j["sliding_window"] = json!(8)).unwrap().is_empty());
    assert!(windows("mistral", |_| ()).unwrap().is_empty(), "an explicit null");
    assert_eq!(windows("mistral", |j| j["sliding_window"] = json!(8)).unwrap(), [Some(8); 3]);
    let absent = windows("mistral", |j| drop(j.as_object_mut().unwrap().remove("sliding_window")));
    assert_eq!(absent.unwrap(), [Some(4096); 3]);
    let switched = windows("qwen2", |j| {
        (j["use_sliding_window"], j["sliding_window"]) = (json!(true), json!(8));
        j["max_window_layers"] = json!(1);
    });
    assert_eq!(switched.unwrap(), [None, Some(8), Some(8)]);
    let named = of("qwen3", |j| {
        (j["use_sliding_window"], j["sliding_window"]) = (json!(true), json!(8));
        j["layer_types"] = json!(["sliding_attention", "full_attention"]);
    });
    assert_eq!(named.unwrap().windows, [Some(8), None]);
    assert!(of("qwen3", |j| j["layer_types"] = json!(["sliding_attention", "full_attention"])).is_err());
    assert!(of("qwen3", |j| j["layer_types"] = json!(["full_attention"])).is_err());
    assert!(of("qwen3", |j| j["layer_types"] = json!(["full_attention", "chunked_attention"])).is_err());
    assert!(of("llama", |j| j["use_sliding_window"] = json!(true)).is_err());
    let mixed = of("mistral", |j| {
        j["sliding_window"] = json!(8);
        j["layer_types"] = json!(["sliding_attention", "full_attention"]);
    });
    let error = mixed.unwrap_err().to_string();
    assert!(error.contains("layer_types must be sliding_attention for each layer in this family"), "{error}");
}

#[test]
fn rotary_scalings_are_read_in_both_spellings() {
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    let want = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };
    for field in ["rope_parameters", "rope_scaling"] {
        let cfg = of("llama", |j| {
            (j["rope_parameters"], j["rope_theta"]) = (Value::Null, json!(500.0));
            j[field] = llama3.clone();
        });
        let cfg = cfg.unwrap();
        assert_eq!((cfg.rope_theta, &cfg.rope_scaling), (500.0, &want), "{field}");
        round_trip(&cfg);
    }
    let scaled = |rope: Value| of("llama", |j| j["rope_parameters"] = rope);
    let linear = scaled(json!({"type": "linear", "factor": 2.0})).unwrap();
    assert_eq!(linear.rope_scaling, RopeScaling::Linear { factor: 2.0 });
    let yarn = scaled(json!({"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5})).unwrap();
    let RopeScaling::Yarn(y) = yarn.rope_scaling else { panic!("{:?}", yarn.rope_scaling) };
    assert_eq!((y.original, y.beta_fast, y.attention), (256.0, 32.0, Some(1.5)));
    round_trip(&linear);
    round_trip(&yarn);
    let divisors = scaled(json!({"rope_type": "divisors", "divisors": vec![1.25; 8]}));
    let divisors = divisors.unwrap();
    assert_eq!(divisors.rope_scaling, RopeScaling::Divisors(vec![1.25; 8]));
    round_trip(&divisors);
    for (bad, says) in [
        (json!({"rope_type": "divisors"}), "divisors"),
        (json!({"rope_type": "divisors", "divisors": vec![1.25; 7]}), "one divisor for each pair"),
        (json!({"rope_type": "divisors", "divisors": vec![1e300; 8]}), "divisors"),
        (json!({"rope_type": "dynamic", "factor": 2.0}), "dynamic"),
        (json!({"rope_type": "spiral"}), "spiral"),
        (json!({"rope_type": "linear"}), "factor"),
        (json!({"rope_type": "linear", "factor": 0.0}), "rope_scaling"),
        (json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}), "high_freq_factor"),
        (json!({"rope_type": "default", "partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        (json!("linear"), "rope_parameters"),
    ] {
        let error = scaled(bad).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn both_spellings_of_a_rotary_scaling_have_to_agree() {
    let both = |old: Value| {
        of("llama", |j| {
            j["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 500.0});
            j["rope_scaling"] = old;
        })
    };
    assert!(both(json!({"type": "default"})).is_ok());
    for (old, says) in [
        (json!({"type": "longrope", "short_factor": [1.0], "long_factor": [4.0]}), "longrope"),
        (json!({"type": "linear", "factor": 4.0}), "rope_scaling must be null or the rule"),
    ] {
        let error = both(old).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_rotary_object_without_a_rule_has_no_other_field() {
    let of_rope = |field: &str, rope: Value| {
        of("llama", |j| {
            (j["rope_parameters"], j["rope_scaling"]) = (Value::Null, Value::Null);
            j[field] = rope;
        })
    };
    let nested = json!({"rope_type": "linear", "factor": 4.0});
    for field in ["rope_parameters", "rope_scaling"] {
        let plain = of_rope(field, json!({"rope_theta": 5.0, "partial_rotary_factor": 1.0, "factor": null}));
        assert_eq!(plain.map(|cfg| (cfg.rope_theta, cfg.rope_scaling)), Ok((5.0, RopeScaling::Default)));
        for (rope, says) in [
            (json!({"factor": 4.0}), "factor"),
            (
                json!({"rope_theta": 5.0, "original_max_position_embeddings": 64}),
                "original_max_position_embeddings",
            ),
            (json!({"full_attention": nested}), "full_attention"),
        ] {
            let error = of_rope(field, rope).unwrap_err().to_string();
            let want = "rope_type must be default, linear, llama3 or yarn";
            assert!(error.contains(want) && error.contains(&format!("the field {says}")), "{error}");
        }
    }
}

#[test]
fn the_original_positions_of_a_config_have_to_agree() {
    for kind in ["llama3", "yarn"] {
        let original = |of_model: Value| {
            of("llama", |j| {
                j["rope_scaling"] = Value::Null;
                j["rope_parameters"] = json!({
                    "rope_type": kind, "rope_theta": 5.0, "factor": 4.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
                });
                j["original_max_position_embeddings"] = of_model;
            })
        };
        assert!(original(json!(64)).is_ok() && original(Value::Null).is_ok(), "{kind}");
        let error = original(json!(16)).unwrap_err().to_string();
        assert!(error.contains("original_max_position_embeddings must be the number of"), "{error}");
        #[cfg(feature = "faults")]
        assert!(faults::with(Fault::OriginalPositionsMayDiffer, || original(json!(16))).is_ok(), "{kind}");
    }
}

#[test]
fn the_bases_of_a_config_have_to_agree() {
    let theta = |[new, old, top]: [Value; 3]| {
        of("llama", |j| {
            j["rope_parameters"] = json!({"rope_type": "default", "rope_theta": new});
            j["rope_scaling"] = json!({"rope_type": "default", "rope_theta": old});
            j["rope_theta"] = top;
        })
        .map(|cfg| cfg.rope_theta)
        .map_err(|error| error.to_string())
    };
    assert_eq!(theta([json!(5.0), json!(5), json!(5.0)]), Ok(5.0));
    assert_eq!(theta([Value::Null, json!(5), Value::Null]), Ok(5.0));
    assert_eq!(theta([Value::Null, Value::Null, Value::Null]), Ok(10_000.0));
    for (bases, says) in [
        ([json!(5.0), Value::Null, json!(7.0)], "5 and 7"),
        ([json!(5.0), json!(6.0), Value::Null], "5 and 6"),
        ([Value::Null, json!(6.0), json!(7.0)], "6 and 7"),
        ([json!(5.0), json!("6"), Value::Null], "rope_theta must be a number"),
    ] {
        let error = theta(bases).unwrap_err();
        assert!(error.contains("rope_theta") && error.contains(says), "{error}");
    }
}

#[test]
fn unsupported_fields_are_refused_by_name() {
    for (field, value, says) in [
        ("model_type", json!("gpt2"), "gpt2"),
        ("hidden_act", json!("gelu"), "hidden_act"),
        ("attention_dropout", json!(0.1), "attention_dropout"),
        ("attention_bias", json!("yes"), "attention_bias"),
        ("quantization_config", json!({"bits": 4}), "quantization_config"),
        ("final_logit_softcapping", json!(30.0), "final_logit_softcapping"),
        ("num_local_experts", json!(8), "num_local_experts"),
        ("attention_multiplier", json!(1.0), "attention_multiplier"),
        ("residual_multiplier", json!(0.5), "residual_multiplier must be 1 or absent"),
        ("is_encoder_decoder", json!(true), "is_encoder_decoder"),
        ("is_causal", json!(false), "is_causal must be true"),
        ("hidden_size", json!("64"), "hidden_size"),
        ("num_hidden_layers", json!(0), "num_hidden_layers must be from 1"),
        ("num_hidden_layers", json!(1u64 << 40), "num_hidden_layers must be from 1"),
        ("head_dim", json!(15), "head_dim"),
        ("rms_norm_eps", json!("nan"), "rms_norm_eps must be a number"),
        ("rms_norm_eps", json!(0.0), "rms_norm_eps must be positive and finite"),
        ("max_position_embeddings", json!(0), "max_position_embeddings must be from 1"),
        (
            "num_key_value_heads",
            json!(3),
            "num_key_value_heads must be a divisor of the number of query heads",
        ),
        ("rms_norm_eps", Value::Null, "rms_norm_eps must be a number"),
        ("rope_theta", json!(0.0), "rope_theta"),
        (
            "original_max_position_embeddings",
            json!("64"),
            "original_max_position_embeddings must be a number",
        ),
        ("rope_scaling", json!({"type": "longrope", "factor": 4.0}), "longrope"),
    ] {
        let mut j = json();
        j["rope_parameters"] = Value::Null;
        j[field] = value;
        let error = from_json(&j).unwrap_err().to_string();
        assert!(error.contains(says), "{field}: {error}");
    }
}

#[test]
#[cfg(feature = "faults")]
fn an_ignored_mask_is_found() {
    let mut json = json();
    json["is_causal"] = json!(false);
    assert!(
        from_json(&json).is_err() && faults::with(Fault::CausalFieldIgnored, || from_json(&json)).is_ok()
    );
}

#[test]
fn factors_of_one_change_nothing() {
    let plain = from_json(&json()).unwrap();
    for field in UNIT_FACTORS {
        assert_eq!(of("qwen3", |j| j[field] = json!(1)).unwrap(), plain, "{field}");
    }
}

#[test]
fn a_config_that_no_family_supports_is_not_written() {
    let base = from_json(&json()).unwrap();
    for cfg in [
        Config { biases: Biases { qkv: true, o: false, mlp: false }, ..base.clone() },
        Config { qk_norm: false, windows: vec![Some(4), None], ..base.clone() },
        Config { windows: vec![Some(4), Some(5)], ..base.clone() },
        // biases as in llama, which has no windows
        Config {
            qk_norm: false,
            biases: Biases { qkv: true, o: true, mlp: false },
            windows: vec![Some(4), Some(4)],
            ..base.clone()
        },
    ] {
        assert!(to_json(&cfg, &[]).is_err(), "{cfg:?}");
    }
}

#[test]
fn mutated_configs_do_no_harm() {
    if !alone("hf::tests::mutated_configs_do_no_harm") {
        return;
    }
    let (seed, cases) = (json().to_string(), times(20_000, 200_000));
    let values = [
        "null",
        "-1",
        "0",
        "1e400",
        "18446744073709551615",
        "1.5",
        "\"\"",
        "[]",
        "{}",
        "[null]",
        "true",
        "[[",
    ];
    let mut accepted = 0;
    for case in 0..cases {
        let mut rng = rng(case);
        let mut random = |n: usize| rng.random_range(0..n);
        let mut text = seed.clone();
        for _ in 0..=random(3) {
            // replace a random value or a random character
            let colons: Vec<usize> = text.match_indices(':').map(|(at, _)| at + 1).collect();
            let kind = random(3);
            if !colons.is_empty() && kind < 2 {
                let from = colons[random(colons.len())];
                let to = text[from..].find([',', '}']).map_or(text.len(), |n| from + n);
                text.replace_range(from..to, values[random(values.len())]);
            } else {
                let at = random(text.len());
                let c = char::from(b"{}[],:\"0a"[random(9)]);
                text.replace_range(at..=at, c.encode_utf8(&mut [0; 4]));
            }
        }
        let work = || std::panic::catch_unwind(|| serde_json::from_str(&text).map(|json| from_json(&json)));
        let read = with_little_memory(format_args!("config.json, case {case}"), text.len(), work);
        match read.unwrap_or_else(|_| panic!("case {case}: {text}")) {
            Ok(Ok(cfg)) => {
                cfg.check().unwrap();
                accepted += 1;
            }
            Ok(Err(error)) => assert_eq!(error.to_string().lines().count(), 1, "case {case}: {error}"),
            Err(_) => {}
        }
    }
    println!("config.json: {accepted} of {cases} mutations are valid configs");
    assert!(accepted > 0 && accepted < cases / 2, "{accepted} of {cases}");
}
