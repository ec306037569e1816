//! The model that is measured, and what it is given.
use std::path::Path;

use serde::Serialize;

use super::Shared;
use super::ideal::Ideal;
use crate::cli::{CliError, Exit, loaded, source, timed};
use crate::config::RunConfig;
use crate::decode::{Engine, EngineOptions, Request};
use crate::model::Model;
use crate::report::{Timings, units};
use crate::tensor::rng::{Purpose, uniform_u64};
use crate::training;

/// What was measured, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct BenchModel {
    model: String,
    parameters: u64,
    compute: String,
    device: String,
}

/// A rollout to be measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) batch: usize,
    pub(super) one_prompt: bool,
    pub(super) prompt_len: usize,
    pub(super) max_new: usize,
}

impl Load {
    /// Refuses more positions than the model has.
    pub(super) fn check(&self, model: &Model, hint: &str) -> Result<(), CliError> {
        let (got, most) = (self.prompt_len + self.max_new, model.config().max_positions);
        if got <= most {
            return Ok(());
        }
        let message = format!("prompt and completion take {got} positions, the model has {most}");
        Err(CliError::new(Exit::Usage, message).hint(hint))
    }
}

impl BenchModel {
    pub(super) fn new(name: String, model: &Model) -> BenchModel {
        BenchModel {
            model: name,
            parameters: model.config().n_params() as u64,
            compute: model.compute().to_string(),
            device: model.device().to_string(),
        }
    }

    /// What stands above the tables.
    pub(super) fn title(&self) -> String {
        let BenchModel { model, parameters, compute, device } = self;
        format!("{model}: {} parameters, {compute}, {device}\n", units::count(*parameters))
    }
}

/// The model at `path`, or one of the configured sizes with random weights and at least so many
/// `positions`.
pub(super) fn open(
    path: Option<&Path>,
    shared: &Shared,
    positions: usize,
) -> Result<(Model, BenchModel), CliError> {
    if let Some(path) = path {
        let loaded = loaded::open(path, &shared.common)?;
        let subject = BenchModel::new(loaded.path.display().to_string(), &loaded.model);
        return Ok((loaded.model, subject));
    }
    let config = RunConfig::load(&shared.layers.layers())?;
    let device = shared.common.open()?;
    let mut cfg = training::model_config(&config, source::tokenizer(&config.data.tokenizer)?.vocab_size());
    cfg.max_positions = cfg.max_positions.max(positions);
    let compute = training::compute(shared.common.dtype.unwrap_or(config.train.dtype));
    let seed = shared.seed.unwrap_or(config.train.seed);
    let model = Model::init(&cfg, compute, &device, seed)?;
    let subject = BenchModel::new(name(&config), &model);
    Ok((model, subject))
}

/// What a configuration's model is called.
pub(super) fn name(config: &RunConfig) -> String {
    let model = &config.model;
    let preset = if model.preset.is_empty() { "random weights" } else { model.preset.as_str() };
    format!("{preset} ({} layers of {})", model.n_layers, model.dim)
}

/// `n` random ids below `vocab`: those of the address (`seed`, `id`).
pub(super) fn tokens((seed, id): (u64, u64), n: usize, vocab: usize) -> Vec<u32> {
    let draw = |at: usize| uniform_u64(seed, id, at as u32, Purpose::DataOrder);
    (0..n).map(|at| ((u128::from(draw(at)) * vocab as u128) >> 64) as u32).collect()
}

/// One rollout.
pub(super) struct Measured {
    pub(super) timings: Timings,
    pub(super) cache_bytes: usize,
    /// On a GPU: bytes of keys and values that new tokens read once all had begun, and those that they needed.
    pub(super) kv: Option<[u64; 2]>,
}

/// One rollout: its times, the bytes of its cache, and those that were read of it.
pub(super) fn measure(model: &Model, load: Load, options: EngineOptions) -> Result<Measured, CliError> {
    let positions = Some(load.prompt_len + load.max_new);
    let mut engine =
        Engine::new(model, EngineOptions { max_seq_len: positions, max_batch: load.batch, ..options })?;
    let request = |id| Request {
        id,
        ..Request::greedy(&tokens((0, id), load.prompt_len, model.config().vocab), load.max_new)
    };
    if load.one_prompt {
        engine.submit_group(request(0), load.batch)?;
    } else {
        (0..load.batch as u64).try_for_each(|id| engine.submit(request(id)).map(|_| ()))?;
    }
    let (mut begun, mut from, mut needed) = (vec![false; load.batch], None, 0);
    let timings = timed::run(&mut engine, &mut |events| {
        if from.is_some() {
            needed += events.iter().map(|e| Ideal::kv_before(model, e.position)).sum::<u64>();
        }
        events.iter().for_each(|e| begun[e.index] = true);
        if from.is_none() && begun.iter().all(|&b| b) {
            from = model.device().gpu_counters();
        }
        Ok(())
    })?;
    let read = |from| model.device().gpu_counters().map(|t| t.since(from).kv_read);
    let kv = from.and_then(read).filter(|_| needed > 0).map(|read| [read, needed]);
    Ok(Measured { timings, cache_bytes: engine.cache().map_or(0, |cache| cache.bytes()), kv })
}
