//! Every configuration key reaches the structs that are made from the configuration, in its own field. A new key that
//! is in no table below fails.
use toml::Value;

use crate::config::check::{KnownKeys, tree};
use crate::config::{GrpoSection, RunConfig};
use crate::decode::EngineOptions;
use crate::grpo::from_config as grpo;
use crate::training::{self, WindowSpec};

/// A key, a value that is not its default, and what then is in the structs, and is not with the default.
const EFFECTS: &[(&str, &str, &str)] = &[
    ("model.dim", "96", " dim: 96,"),
    ("model.n_layers", "7", "n_layers: 7,"),
    ("model.n_heads", "12", " n_heads: 12,"),
    ("model.n_kv_heads", "2", "n_kv_heads: 2,"),
    ("model.head_dim", "24", "head_dim: 24,"),
    ("model.ffn_dim", "88", "ffn_dim: 88,"),
    ("model.vocab", "301", "vocab: 301,"),
    ("model.max_positions", "999", "max_positions: 999,"),
    ("model.tie_embeddings", "false", "tie_embeddings: false,"),
    ("model.qk_norm", "false", "qk_norm: false,"),
    ("model.rope_theta", "1234.0", "rope_theta: 1234.0,"),
    ("model.norm_eps", "0.25", "norm_eps: 0.25,"),
    ("train.task", "'sft'", "task: Sft"),
    ("train.context", "300", "context: 300,"),
    ("train.context", "301", "max_positions: 301,"),
    ("train.gradient_checkpointing", "true", "PerLayer"),
    ("train.steps", "777", " steps: 777,"),
    ("train.learning_rate", "0.25", " lr: 0.25,"),
    ("train.initial_learning_rate", "0.125", "warmup_start_lr: 0.125,"),
    ("train.min_learning_rate", "0.375", "min_lr: 0.375,"),
    ("train.schedule", "'linear'", "decay: Linear"),
    ("train.schedule", "'wsd'", "decay: Wsd,"),
    ("train.schedule", "'wsd-cosine'", "decay: WsdCosine"),
    ("train.schedule", "'wsd-sqrt'", "decay: WsdSqrt"),
    ("train.schedule", "'constant'", "decay: Constant"),
    ("train.warmup", "33", "warmup_steps: 33,"),
    ("train.decay", "44", "decay_steps: 44 "),
    ("train.weight_decay", "0.25", "weight_decay: 0.25,"),
    ("train.beta1", "0.625", "beta1: 0.625,"),
    ("train.beta2", "0.875", "beta2: 0.875,"),
    ("train.eps", "0.5", " eps: 0.5,"),
    ("train.clip", "2.5", "clip: 2.5 "),
    ("train.clip", "0.0", "clip: inf "),
    ("train.dtype", "'bf16'", "BF16"),
    ("data.packing", "'documents'", "packing: Documents"),
    ("grpo.num_generations", "5", "group: 5,"),
    ("grpo.num_generations", "6", "max_batch: 96,"),
    ("grpo.num_generations", "7", "shared: 7,"),
    ("grpo.prompts_per_step", "3", "max_batch: 48,"),
    ("grpo.micro_batch", "9", "micro_batch: 9 "),
    ("grpo.prompt_sharing", "4", "shared: 4,"),
    ("grpo.max_completion_length", "77", "max_new: 77,"),
    ("grpo.max_completion_length", "78", "max_completion_length: Some(78)"),
    ("grpo.max_turns", "3", "max_turns: 3,"),
    ("grpo.stop", "['#']", "stop_texts: [\"#\"]"),
    ("grpo.temperature", "0.75", "temperature: 0.75"),
    ("grpo.top_k", "13", "top_k: Some(13)"),
    ("grpo.top_p", "0.5", "top_p: Some(0.5)"),
    ("grpo.min_p", "0.125", "min_p: Some(0.125)"),
    ("grpo.steps", "555", " steps: 555,"),
    ("grpo.steps", "550", "decay_steps: 110 "),
    ("grpo.learning_rate", "0.25", " lr: 0.25,"),
    ("grpo.min_learning_rate", "0.375", "min_lr: 0.375,"),
    ("grpo.schedule", "'cosine'", "decay: Cosine"),
    ("grpo.warmup", "6", "warmup_steps: 6,"),
    ("grpo.weight_decay", "0.25", "weight_decay: 0.25,"),
    ("grpo.beta1", "0.625", "beta1: 0.625,"),
    ("grpo.beta2", "0.875", "beta2: 0.875,"),
    ("grpo.eps", "0.5", " eps: 0.5,"),
    ("grpo.clip", "2.5", "clip: 2.5 "),
    ("grpo.clip", "0.0", "clip: inf "),
    ("grpo.loss_type", "'sapo'", "loss_type: Sapo"),
    ("grpo.importance_sampling_level", "'sequence'", "level: Sequence"),
    ("grpo.epsilon", "0.3125", "epsilon: 0.3125,"),
    ("grpo.epsilon_high", "0.4375", "epsilon_high: Some(0.4375)"),
    ("grpo.delta", "4.0", "delta: Some(4.0)"),
    ("grpo.beta", "0.0625", " beta: 0.0625,"),
    ("grpo.use_bias_correction_kl", "false", "bias_corrected_kl: false"),
    ("grpo.entropy_coef", "0.03125", "entropy_coef: 0.03125"),
    ("grpo.top_entropy_quantile", "0.5", "top_entropy_quantile: 0.5"),
    ("grpo.off_policy_mask_threshold", "2.0", "off_policy_mask_threshold: Some(2.0)"),
    ("grpo.mask_truncated_completions", "true", "mask_truncated_completions: true"),
    ("grpo.scale_rewards", "'batch'", "scale: Batch"),
    ("grpo.advantage_baseline", "'leave_one_out'", "baseline: LeaveOneOut"),
    ("grpo.multi_objective_aggregation", "'normalize_then_sum'", "aggregation: NormalizeThenSum"),
];

/// Keys that a loop or a loader reads. The structs below do not contain them.
const ELSEWHERE: &[&str] = &[
    "data.files",
    "data.tokenizer",
    "data.val_files",
    "data.val_fraction",
    "grpo.eval_every",
    "grpo.eval_limit",
    "grpo.eval_prompts",
    "grpo.eval_samples",
    "grpo.json_schema",
    "grpo.keep",
    "grpo.max_prompt_length",
    "grpo.num_iterations",
    "grpo.preallocate",
    "grpo.prompts",
    "grpo.ref_dtype",
    "grpo.ref_model_mixup_alpha",
    "grpo.ref_model_sync_steps",
    "grpo.regex",
    "grpo.resample_groups",
    "grpo.reward",
    "grpo.reward_dir",
    "grpo.reward_processes",
    "grpo.reward_timeout",
    "grpo.reward_weights",
    "grpo.save_every",
    "grpo.score_duplicates",
    "grpo.show_every",
    "grpo.steps_per_generation",
    "grpo.task",
    "grpo.verify_every",
    "grpo.wrong_answers",
    "model.preset",
    "sample.count",
    "sample.max_new",
    "sample.min_p",
    "sample.prompt",
    "sample.temperature",
    "sample.top_k",
    "sample.top_p",
    "train.batch",
    "train.eval_every",
    "train.eval_tokens",
    "train.init",
    "train.keep",
    "train.keep_best",
    "train.micro_batch",
    "train.order",
    "train.patience",
    "train.sample_every",
    "train.save_every",
    "train.seed",
    "train.shards",
    "train.stats_every",
];

/// The structs that a section becomes, as text: those of `[grpo]`, or those of the others.
fn structs(config: &RunConfig, grpo: bool) -> String {
    let section = config.grpo.as_ref().unwrap();
    match grpo {
        false => format!(
            "{:?} {:?} {:?} {:?} {:?} {:?}",
            training::model_config(config, 257),
            training::compute(config.train.dtype),
            training::optim_config(config),
            training::schedule(config),
            training::activation_checkpointing(config),
            WindowSpec::new(config)
        ),
        true => format!(
            "{:?} {:?} {:?} {:?} {:?}",
            grpo::optim_config(section),
            grpo::schedule(section),
            grpo::rollout_options(section, 0, EngineOptions::default()),
            grpo::advantage_options(section),
            grpo::updater(section)
        ),
    }
}

#[test]
fn every_key_reaches_its_field() {
    let default = RunConfig { grpo: Some(GrpoSection::default()), ..RunConfig::default() };
    for (key, value, want) in EFFECTS {
        let mut all = tree(&default);
        let (section, last) = key.split_once('.').unwrap();
        let value: toml::Table = format!("x = {value}").parse().unwrap();
        assert_ne!(all[section][last], value["x"], "{key}: the default");
        all[section][last] = value["x"].clone();
        let config: RunConfig = Value::Table(all).try_into().unwrap();
        let [found, plain] = [&config, &default].map(|config| structs(config, section == "grpo"));
        assert!(found.contains(want), "{key} = {}: expected {want}: {found}", value["x"]);
        assert!(!plain.contains(want), "{key}: {want} does not depend on it: {plain}");
    }
}

#[test]
fn every_key_is_in_a_table() {
    for key in KnownKeys::new().keys() {
        let [has_effect, elsewhere] =
            [EFFECTS.iter().any(|(name, ..)| *name == key), ELSEWHERE.contains(&key)];
        assert!(has_effect != elsewhere, "{key}: expected in one table of key_effects.rs");
    }
}

#[test]
#[cfg(feature = "faults")]
fn a_key_in_the_field_of_another_is_found() {
    use crate::tensor::faults::{self, Fault};
    use crate::tensor::testing::failure;
    let failed = faults::with(Fault::AdamBetasExchanged, || failure(every_key_reaches_its_field));
    let text = failed.expect("the fault is missed");
    assert!(text.contains("train.beta1"), "{text}");
}
