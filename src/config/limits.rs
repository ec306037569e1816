//! Every numeric key has limits: values beyond them are refused with the name of the key, and the last values within
//! them are accepted. A new numeric key that is in no table fails.
use super::check::KnownKeys;
use super::{Layer, RunConfig};

/// A key, values that it refuses and values that it accepts.
const LIMITS: &[(&str, &[&str], &[&str])] = &[
    ("data.val_fraction", &["-0.1", "1.0", "nan"], &["0.0", "0.999"]),
    ("model.dim", &["0", "65537"], &[]),
    ("model.ffn_dim", &["0", "262145"], &["262144", "1"]),
    ("model.head_dim", &["33", "258"], &["2", "256"]),
    ("model.max_positions", &["1048578"], &["0", "1048577"]),
    ("model.n_heads", &["0"], &["2"]),
    ("model.n_kv_heads", &["3", "8"], &["1", "4"]),
    ("model.n_layers", &["0", "1025"], &["1", "1024"]),
    ("model.norm_eps", &["0.0", "1.0", "nan"], &["1e-12", "0.999"]),
    ("model.rope_theta", &["1.0", "inf", "nan"], &["1.001"]),
    ("model.vocab", &["524289"], &["524288"]),
    ("sample.count", &["0", "4097"], &["1", "4096"]),
    ("sample.max_new", &["0"], &["1"]),
    ("sample.min_p", &["-0.1", "1.1", "nan"], &["0.0", "1.0"]),
    ("sample.temperature", &["-1.0", "1e-31", "inf", "nan"], &["0.0", "1e-30"]),
    ("sample.top_p", &["0.0", "1e-60", "1.1", "nan"], &["1e-9", "1.0"]),
    ("train.batch", &["0", "1048577"], &["1", "1048576"]),
    ("train.beta1", &["-0.1", "1.0", "nan"], &["0.0", "0.999"]),
    ("train.beta2", &["-0.1", "1.0", "nan"], &["0.0", "0.999"]),
    ("train.clip", &["-0.1", "inf", "nan"], &["0.0"]),
    ("train.context", &["0", "1048577"], &["1", "1048576"]),
    ("train.decay", &["1001"], &["0", "1000"]),
    ("train.eps", &["0.0", "-1.0", "inf", "nan"], &["1e-30"]),
    ("train.initial_learning_rate", &["-0.1", "0.0011", "nan"], &["0.0", "0.001"]),
    ("train.keep", &["0", "1"], &["2"]),
    ("train.learning_rate", &["0.0", "-1.0", "inf", "nan"], &["0.5"]),
    ("train.micro_batch", &["0", "17"], &["1", "16"]),
    ("train.min_learning_rate", &["-0.1", "0.0011", "nan"], &["0.0", "0.001"]),
    ("train.shards", &["0", "17"], &["1", "16"]),
    ("train.steps", &["0", "2147483649"], &["2147483648"]),
    ("train.warmup", &["1001"], &["0", "1000"]),
    ("train.weight_decay", &["-0.1", "inf", "nan"], &["0.0"]),
    ("grpo.beta", &["-0.1", "inf", "nan"], &["0.0"]),
    ("grpo.beta1", &["-0.1", "1.0", "nan"], &["0.0", "0.999"]),
    ("grpo.beta2", &["-0.1", "1.0", "nan"], &["0.0", "0.999"]),
    ("grpo.clip", &["-0.1", "inf", "nan"], &["0.0"]),
    ("grpo.delta", &["-0.1", "inf", "nan"], &["0.0", "4.0"]),
    ("grpo.entropy_coef", &["-0.1", "inf", "nan"], &["0.0"]),
    ("grpo.eps", &["0.0", "-1.0", "inf", "nan"], &["1e-30"]),
    ("grpo.epsilon", &["-0.1", "nan"], &["0.0"]),
    ("grpo.epsilon_high", &["-0.1", "nan"], &["0.0"]),
    ("grpo.eval_samples", &["0", "65537"], &["1", "65536"]),
    ("grpo.keep", &["0", "1"], &["2"]),
    ("grpo.learning_rate", &["0.0", "-1.0", "inf", "nan"], &["0.5"]),
    ("grpo.max_completion_length", &["0", "1048577"], &["1", "1048576"]),
    ("grpo.max_prompt_length", &["0", "1048577"], &["1", "1048576"]),
    ("grpo.max_turns", &["0", "1025"], &["1", "1024"]),
    ("grpo.micro_batch", &["0", "1048577"], &["1", "1048576"]),
    ("grpo.min_learning_rate", &["-0.1", "0.00011", "nan"], &["0.0", "0.0001"]),
    ("grpo.min_p", &["-0.1", "1.1", "nan"], &["0.0", "1.0"]),
    ("grpo.num_generations", &["0", "1", "65537"], &["2", "65536"]),
    ("grpo.num_iterations", &["0", "1025"], &["200"]),
    ("grpo.off_policy_mask_threshold", &["-0.1", "inf", "nan"], &["0.0"]),
    ("grpo.prompt_sharing", &["0", "65537"], &["1", "65536"]),
    ("grpo.prompts_per_step", &["0", "1048577"], &["1", "1048576"]),
    ("grpo.ref_model_mixup_alpha", &["-0.1", "1.1", "nan"], &["0.0", "1.0"]),
    ("grpo.ref_model_sync_steps", &["1"], &["0"]),
    ("grpo.resample_groups", &["256"], &["0", "255"]),
    ("grpo.reward_processes", &["0", "1025"], &["1", "1024"]),
    ("grpo.reward_timeout", &["0.0", "1000000.1", "nan"], &["1e-3", "1e6"]),
    ("grpo.reward_weights", &["[1.0, inf]", "[nan]"], &["[]", "[1.0, -1.0]"]),
    ("grpo.steps", &["0", "2147483649"], &["2147483648"]),
    ("grpo.steps_per_generation", &["0", "3", "17"], &["1", "8"]),
    ("grpo.stop", &["['']", "['a', '']"], &["['a']", "[]"]),
    ("grpo.temperature", &["0.0", "1e-31", "inf", "nan"], &["1e-30"]),
    ("grpo.top_entropy_quantile", &["0.0", "1.1", "nan"], &["1e-9", "1.0"]),
    ("grpo.top_p", &["0.0", "1e-60", "1.1", "nan"], &["1e-9", "1.0"]),
    ("grpo.warmup", &["201"], &["0", "200"]),
    ("grpo.weight_decay", &["-0.1", "inf", "nan"], &["0.0"]),
    ("grpo.wrong_answers", &["-0.1", "1.1", "nan"], &["0.0", "1.0"]),
];

/// Numeric keys for which each whole number has a meaning, most of them 0 for "never" or "no limit".
const UNLIMITED: &[&str] = &[
    "grpo.eval_every",
    "grpo.eval_limit",
    "grpo.save_every",
    "grpo.show_every",
    "grpo.top_k",
    "grpo.verify_every",
    "sample.top_k",
    "train.eval_every",
    "train.eval_tokens",
    "train.patience",
    "train.sample_every",
    "train.save_every",
    "train.seed",
    "train.stats_every",
];

#[test]
fn every_numeric_key_has_its_limits() {
    for (key, refused, accepted) in LIMITS {
        let load = |value: &str| RunConfig::load(&[Layer::Set(format!("{key}={value}"))]);
        for value in *refused {
            let message = load(value).map(drop).expect_err(&format!("{key} = {value}: accepted")).to_string();
            assert!(message.starts_with(&format!("`{key}` = ")), "{key} = {value}: {message}");
        }
        for value in *accepted {
            assert!(load(value).is_ok(), "{key} = {value}: {}", load(value).unwrap_err());
        }
    }
}

#[test]
fn every_numeric_key_is_in_a_table() {
    let known = KnownKeys::new();
    let numeric = |key: &&str| ["integer", "number", "list of numbers"].contains(&known.type_name(key));
    for key in known.keys().filter(numeric) {
        let [limited, unlimited] = [LIMITS.iter().any(|(name, ..)| *name == key), UNLIMITED.contains(&key)];
        assert!(limited != unlimited, "{key}: expected in one table of limits.rs");
    }
}

#[test]
#[cfg(feature = "faults")]
fn a_limit_that_is_ignored_is_found() {
    use crate::tensor::faults::{self, Fault};
    use crate::tensor::testing::failure;
    let failed = faults::with(Fault::NumberLimitsIgnored, || failure(every_numeric_key_has_its_limits));
    let text = failed.expect("the fault is missed");
    assert!(text.contains("grpo.beta = -0.1"), "{text}");
}
