//! Estimates of the memory of training runs.
use std::path::Path;

use super::{CliError, loaded};
use crate::config::RunConfig;
use crate::decode::KvKind;
use crate::grpo;
use crate::memory::{self, Memory};
use crate::model::{Config, store};
use crate::tensor::faults::{self, Fault};
use crate::training;

/// Code, tokenizer, prompts and buffers of files.
pub(super) const PROGRAM: u64 = 25_000_000;

/// The library of several processes, with the memory that those of a machine share: fitted to two processes of Open
/// MPI 4.1.
const MPI: u64 = 25_000_000;

/// The memory of a process of `xtrain train`, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrainingMemory {
    /// The moments are those of the process during a step.
    pub(super) model: Memory,
    /// Activations and logits.
    pub(super) activations: u64,
    /// The program, and unused memory at the ends of blocks.
    pub(super) program: u64,
    /// What several processes need in addition ([`of_process`]).
    pub(super) exchange: u64,
}

impl TrainingMemory {
    /// The memory of `config` with a vocabulary of `vocab` tokens unless it sets one, in each of `processes` processes.
    pub(super) fn of(config: &RunConfig, vocab: usize, processes: usize) -> Result<TrainingMemory, CliError> {
        let (cfg, compute) = (model(config, vocab), training::compute(config.train.dtype));
        let model = with_shards(memory::memory(&cfg, compute)?, config, processes);
        let activations = activations(config, &cfg);
        let program = PROGRAM + memory::block_ends(&cfg, compute)?;
        let (model, exchange) = of_process(model, activations, processes);
        Ok(TrainingMemory { model, activations, program, exchange })
    }

    pub(super) fn total(&self) -> u64 {
        let TrainingMemory { model, activations, program, exchange } = self;
        [*activations, *program, *exchange].into_iter().fold(model.to_train(), u64::saturating_add)
    }
}

/// The memory of one of `processes`, which has a part of the moments, and what it needs in addition: the sums of its slice
/// of the gradients, a copy of its slice of the weights, MPI, and at a checkpoint the moments of all slices, as far as the
/// step needs less.
fn of_process(mut model: Memory, activations: u64, processes: usize) -> (Memory, u64) {
    if processes == 1 {
        return (model, 0);
    }
    let lost = faults::on(Fault::ExchangeNotInEstimate);
    let slice = if lost { 0 } else { model.weights / processes as u64 };
    let checkpoint = model.moments + slice;
    model.moments /= processes as u64;
    // one of the two slices exists while there are no activations
    let slices = slice + slice.saturating_sub(activations);
    let step = model.gradients.saturating_add(model.moments).saturating_add(activations) + slices;
    (model, slices + checkpoint.saturating_sub(step) + MPI)
}

/// `model` with the totals of shards that wait for another one: each is as large as the weights.
fn with_shards(mut model: Memory, config: &RunConfig, processes: usize) -> Memory {
    let shards = (config.train.shards / processes).max(1);
    model.gradients += model.weights * u64::from(shards.ilog2());
    model
}

/// The activations and logits of a training pass of `[train]`, in bytes.
fn activations(config: &RunConfig, cfg: &Config) -> u64 {
    let (train, compute) = (&config.train, training::compute(config.train.dtype));
    let of_shard = train.batch.div_ceil(train.shards.max(1));
    let rows = train.micro_batch.min(of_shard) * train.context;
    let activations = memory::activations(cfg, compute, training::activation_checkpointing(config), rows);
    activations.saturating_add(memory::logits(cfg, compute, rows))
}

/// The memory of a process of `xtrain grpo`, in bytes.
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
    /// What several processes need in addition ([`of_process`]).
    pub(super) exchange: u64,
}

impl GrpoMemory {
    /// The memory of `config` in each of `processes` processes, with prompts of at most `prompt_len` tokens.
    pub(super) fn of(
        config: &RunConfig,
        prompt_len: usize,
        processes: usize,
    ) -> Result<GrpoMemory, CliError> {
        let section = config.grpo.clone().unwrap_or_default();
        let cfg = grpo_model(config)?;
        let compute = training::compute(config.train.dtype);
        let length = (prompt_len + section.max_completion_length).min(cfg.max_positions);
        let (groups, group) = (section.prompts_per_step, section.num_generations);
        let lengths = [prompt_len, length.saturating_sub(prompt_len)];
        let examples = grpo::from_config::updater(&section).examples;
        let rows = examples.rows_per_pass([groups, group], processes, lengths);
        let logits = memory::logits(&cfg, compute, rows);
        let checkpointing = training::activation_checkpointing(config);
        let of_all = faults::on(Fault::CacheOfAllProcesses);
        let own = if of_all { groups } else { groups.div_ceil(processes) };
        let sequences = (own * group).min(grpo::from_config::MAX_BATCH) as u64;
        let per_token = 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * compute.bytes();
        let reference = match section.beta > 0.0 {
            true => memory::memory(&cfg, training::compute(section.ref_dtype))?.to_decode,
            false => 0,
        };
        let base = if config.train.init.is_empty() { activations(config, &cfg) } else { 0 };
        let activations = memory::activations(&cfg, compute, checkpointing, rows).saturating_add(logits);
        let model = with_shards(memory::memory(&cfg, compute)?, config, processes);
        let (model, exchange) = of_process(model, activations, processes);
        Ok(GrpoMemory {
            train: model.to_train(),
            activations,
            cache: sequences * (length.next_multiple_of(KvKind::PAGE) * per_token) as u64,
            reference,
            base,
            exchange,
        })
    }

    pub(super) fn total(&self) -> u64 {
        let GrpoMemory { train, activations, cache, reference, base, exchange } = *self;
        [train, activations, cache, reference, base, exchange].into_iter().fold(PROGRAM, u64::saturating_add)
    }
}

/// The model of a run with a vocabulary of `vocab` tokens unless it sets one. The configuration has the sizes of the
/// model of `train.init`, but not its biases: they are read from it. A run that is resumed does not need that model;
/// without it, biases are not counted.
pub(super) fn model(config: &RunConfig, vocab: usize) -> Config {
    let biases = || {
        let init = Some(&config.train.init)
            .filter(|init| !init.is_empty() && !faults::on(Fault::BiasesNotInEstimate))?;
        Some(store::config_of(&loaded::find(Path::new(init)).ok()?).ok()?.biases)
    };
    Config { biases: biases().unwrap_or_default(), ..training::model_config(config, vocab) }
}

/// The model of a run of `xtrain grpo`.
pub(super) fn grpo_model(config: &RunConfig) -> Result<Config, CliError> {
    let vocab = match config.model.vocab {
        0 => super::source::tokenizer(&config.data.tokenizer)?.vocab_size(),
        vocab => vocab,
    };
    Ok(model(config, vocab))
}
