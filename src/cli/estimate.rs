//! Estimates of the memory of training runs.
use super::CliError;
use crate::config::RunConfig;
use crate::decode::KvKind;
use crate::grpo;
use crate::memory::{self, Memory};
use crate::model::Config;
use crate::training;

/// Code, tokenizer, prompts and buffers of files.
pub(super) const PROGRAM: u64 = 25_000_000;

/// The memory of a run of `xtrain train`, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrainingMemory {
    pub(super) model: Memory,
    /// Activations and logits.
    pub(super) activations: u64,
}

impl TrainingMemory {
    /// The memory of `config` with a vocabulary of `vocab` tokens unless it sets one.
    pub(super) fn of(config: &RunConfig, vocab: usize) -> Result<TrainingMemory, CliError> {
        let cfg = training::model_config(config, vocab);
        let model = with_shards(memory::memory(&cfg, training::compute(config.train.dtype))?, config);
        Ok(TrainingMemory { model, activations: activations(config, &cfg) })
    }

    pub(super) fn total(&self) -> u64 {
        self.model.to_train().saturating_add(self.activations)
    }
}

/// `model` with the totals of shards that wait for another one: each is as large as the weights.
fn with_shards(mut model: Memory, config: &RunConfig) -> Memory {
    model.gradients += model.weights * u64::from(config.train.shards.max(1).ilog2());
    model
}

/// The activations and logits of a training pass of `[train]`, in bytes.
fn activations(config: &RunConfig, cfg: &Config) -> u64 {
    let (train, compute) = (&config.train, training::compute(config.train.dtype));
    let rows = train.micro_batch * train.context;
    let activations = memory::activations(cfg, compute, training::activation_checkpointing(config), rows);
    activations.saturating_add(memory::logits(cfg, compute, rows))
}

/// The memory of a run of `xtrain grpo`, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrpoMemory {
    /// Weights, packed weights, gradients and optimizer.
    pub(super) train: u64,
    /// Activations and logits.
    pub(super) activations: u64,
    /// The KV cache of the rollouts.
    pub(super) cache: u64,
    /// The reference model.
    pub(super) reference: u64,
    /// The activations of the base model. The same process trains it first. The allocator keeps its blocks by size:
    /// those of the weights and of the optimizer are used again, those of the activations have other sizes.
    pub(super) base: u64,
}

impl GrpoMemory {
    /// The memory of `config`, with prompts of at most `prompt_len` tokens.
    pub(super) fn of(config: &RunConfig, prompt_len: usize) -> Result<GrpoMemory, CliError> {
        let section = config.grpo.clone().unwrap_or_default();
        let cfg = grpo_model(config)?;
        let compute = training::compute(config.train.dtype);
        let length = (prompt_len + section.max_completion_length).min(cfg.max_positions);
        let (groups, group) = (section.prompts_per_step, section.num_generations);
        let lengths = [prompt_len, length.saturating_sub(prompt_len)];
        let rows = grpo::from_config::updater(&section).examples.rows_per_pass([groups, group], lengths);
        let logits = memory::logits(&cfg, compute, rows);
        let checkpointing = training::activation_checkpointing(config);
        let sequences = section.completions().min(grpo::from_config::MAX_BATCH) as u64;
        let per_token = 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * compute.bytes();
        let reference = match section.beta > 0.0 {
            true => memory::memory(&cfg, training::compute(section.ref_dtype))?.to_decode,
            false => 0,
        };
        let base = if config.train.init.is_empty() { activations(config, &cfg) } else { 0 };
        Ok(GrpoMemory {
            train: with_shards(memory::memory(&cfg, compute)?, config).to_train(),
            activations: memory::activations(&cfg, compute, checkpointing, rows).saturating_add(logits),
            cache: sequences * (length.next_multiple_of(KvKind::PAGE) * per_token) as u64,
            reference,
            base,
        })
    }

    pub(super) fn total(&self) -> u64 {
        let GrpoMemory { train, activations, cache, reference, base } = *self;
        [train, activations, cache, reference, base].into_iter().fold(PROGRAM, u64::saturating_add)
    }
}

/// The model of a run of `xtrain grpo`.
pub(super) fn grpo_model(config: &RunConfig) -> Result<Config, CliError> {
    let vocab = match config.model.vocab {
        0 => super::source::tokenizer(&config.data.tokenizer)?.vocab_size(),
        vocab => vocab,
    };
    Ok(training::model_config(config, vocab))
}
