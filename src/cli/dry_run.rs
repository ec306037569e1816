//! The output of `xtrain train --dry-run`.
use std::path::Path;

use super::{CliError, out, source};
use crate::config::RunConfig;
use crate::decode::KvKind;
use crate::grpo;
use crate::memory;
use crate::model::Config;
use crate::report::units;
use crate::training;

/// Prints parameters, tokens and memory of the run as comments, followed by the configuration as TOML.
pub(super) fn print(config: &RunConfig) -> Result<(), CliError> {
    let train = &config.train;
    let tokens = train.batch as u64 * train.context as u64;
    let tokenizer = Path::new(&config.data.tokenizer);
    let vocab = match config.model.vocab {
        0 if tokenizer.exists() || config.data.tokenizer == "bytes" => {
            Some(source::tokenizer(&config.data.tokenizer)?.vocab_size())
        }
        0 => None,
        vocab => Some(vocab),
    };
    let embedding = match vocab {
        Some(vocab) => format!("vocabulary of {vocab}"),
        None => "without the embedding: the vocabulary size depends on the tokenizer".to_string(),
    };
    let cfg = training::model_config(config, vocab.unwrap_or(1));
    let compute = training::compute(train.dtype);
    let memory = memory::memory(&cfg, compute)?;
    let activations = training_activations(config, &cfg);
    out::print(format!(
        "# parameters: {} ({embedding})\n\
         # tokens: {} per step, {} in total\n\
         # memory: about {}: weights {}, gradients {}, optimizer state {}, packed weights {}, activations {}\n{}",
        units::count(config.model.parameters(vocab.unwrap_or(0))),
        units::count(tokens),
        units::count(tokens.saturating_mul(train.steps as u64)),
        units::bytes(memory.to_train() + activations),
        units::bytes(memory.weights),
        units::bytes(memory.gradients),
        units::bytes(memory.moments),
        units::bytes(memory.packed + memory.packed_backward),
        units::bytes(activations),
        config.to_toml(),
    ))
}

/// The activations of a training pass of `[train]`, in bytes.
fn training_activations(config: &RunConfig, cfg: &Config) -> u64 {
    let (train, compute) = (&config.train, training::compute(config.train.dtype));
    let rows = train.micro_batch * train.context;
    memory::activations(cfg, compute, training::activation_checkpointing(config), rows)
}

/// Code, tokenizer, prompts and buffers of files.
const PROGRAM: u64 = 25_000_000;

/// Prints parameters, batch and memory of a run of reinforcement learning as comments, followed by the configuration.
pub(super) fn print_grpo(config: &RunConfig, prompt_len: usize) -> Result<(), CliError> {
    let section = config.grpo.clone().unwrap_or_default();
    let vocab = match config.model.vocab {
        0 => source::tokenizer(&config.data.tokenizer)?.vocab_size(),
        vocab => vocab,
    };
    let cfg = training::model_config(config, vocab);
    let compute = training::compute(config.train.dtype);
    let length = (prompt_len + section.max_completion_length).min(cfg.max_positions);
    let completions = section.completions();
    let (groups, group) = (section.prompts_per_step, section.num_generations);
    let lengths = [prompt_len, length.saturating_sub(prompt_len)];
    let rows = grpo::from_config::updater(&section).examples.rows_per_pass([groups, group], lengths);
    // Weights, packed weights, gradients and optimizer.
    let train = memory::memory(&cfg, compute)?.to_train();
    // The loss holds at most 16 MiB of logits, or one row.
    let logits = (4 * rows.min(256) * cfg.vocab).min(16 << 20).max(4 * cfg.vocab) as u64;
    let checkpointing = training::activation_checkpointing(config);
    let activations = memory::activations(&cfg, compute, checkpointing, rows) + logits;
    let sequences = completions.min(grpo::from_config::MAX_BATCH) as u64;
    let per_token = 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * compute.bytes();
    let cache = sequences * (length.next_multiple_of(KvKind::PAGE) * per_token) as u64;
    let reference = match section.beta > 0.0 {
        true => memory::memory(&cfg, training::compute(section.ref_dtype))?.to_decode,
        false => 0,
    };
    // The same process trains the base model first. The allocator keeps its blocks by size: those of the weights and
    // of the optimizer are used again, those of the activations have other sizes.
    let base = match config.train.init.as_str() {
        "" => training_activations(config, &cfg),
        _ => 0,
    };
    out::print(format!(
        "# parameters: {}\n\
         # batch: {} prompts x {} completions of at most {} tokens; {completions} completions per generation batch\n\
         # memory: about {}: weights, gradients and optimizer {}, activations and logits {}, KV cache {}, reference \
         model {}, base model {}, program {}\n{}",
        units::count(cfg.n_params() as u64),
        section.prompts_per_step,
        section.num_generations,
        section.max_completion_length,
        units::bytes(train + activations + cache + reference + base + PROGRAM),
        units::bytes(train),
        units::bytes(activations),
        units::bytes(cache),
        units::bytes(reference),
        units::bytes(base),
        units::bytes(PROGRAM),
        config.to_toml(),
    ))
}
