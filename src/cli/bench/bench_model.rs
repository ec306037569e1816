//! The model of a benchmark, and measured rollouts.
use rand::RngExt as _;
use std::path::Path;

use serde::Serialize;

use super::ideal::Ideal;
use super::shared::Shared;
use super::workload::Workload;
use crate::cli::memory_check::{Models, require, require_cache_in};
use crate::cli::{CliError, loaded, source, timed};
use crate::config::RunConfig;
use crate::decode::{Counters, Engine, EngineOptions, KvMemory, Request, SampleOptions};
use crate::memory;
use crate::model::tokenizer::Tokenizer;
use crate::model::{Model, TrainingExample};
use crate::report::{Timings, units};
use crate::tensor::rng::{PhiloxRng, Purpose};
use crate::training;

/// Default prompt length and number of new tokens.
pub(super) const DEFAULT_LEN: usize = 128;

/// Description of the model, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct BenchModel {
    model: String,
    parameters: u64,
    compute: String,
    device: String,
    /// That of the model's directory. `None`: it has none, or the weights are random.
    #[serde(skip)]
    pub(super) tokenizer: Option<Tokenizer>,
}

impl BenchModel {
    pub(super) fn new(name: String, model: &Model) -> BenchModel {
        BenchModel {
            tokenizer: None,
            model: name,
            parameters: model.config().n_params() as u64,
            compute: model.compute().to_string(),
            device: model.device().to_string(),
        }
    }

    pub(super) fn title(&self) -> String {
        let BenchModel { model, parameters, compute, device, .. } = self;
        format!("{model}: {} parameters, {compute}, {device}\n", units::count(*parameters))
    }
}

/// Opens the model at `path`, or creates one with random weights, the configured sizes and a context of at least
/// `context` tokens.
pub(super) fn open(
    path: Option<&Path>,
    shared: &Shared,
    context: usize,
) -> Result<(Model, BenchModel), CliError> {
    if let Some(path) = path {
        let loaded = loaded::open(path, &shared.common)?;
        let description = BenchModel::new(loaded.path.display().to_string(), &loaded.model);
        return Ok((loaded.model, BenchModel { tokenizer: loaded.tokenizer, ..description }));
    }
    let config = shared.config()?;
    let device = shared.common.open()?;
    let mut cfg = training::model_config(&config, source::tokenizer(&config.data.tokenizer)?.vocab_size());
    cfg.max_positions = cfg.max_positions.max(context);
    let needed = memory::memory(&cfg, training::compute(config.train.dtype))?;
    require(needed.weights + needed.packed, &device, "the model", "reduce the sizes in [model]")?;
    let model = Model::init(&cfg, training::compute(config.train.dtype), &device, config.train.seed)?;
    let description = BenchModel::new(name(&config), &model);
    Ok((model, description))
}

/// The name of the model of a configuration.
pub(super) fn name(config: &RunConfig) -> String {
    let model = &config.model;
    let preset = if model.preset.is_empty() { "random weights" } else { model.preset.as_str() };
    format!("{preset} ({}, dim {})", units::many(model.n_layers as u64, "layer"), model.dim)
}

/// `n` random token ids below `vocab`, determined by `seed` and `id`.
pub(super) fn random_tokens(seed: u64, id: u64, n: usize, vocab: usize) -> Vec<u32> {
    let mut rng = PhiloxRng::new(seed, id, Purpose::DataOrder);
    (0..n).map(|_| rng.random_range(0..vocab as u32)).collect()
}

/// `n` windows of `context` random tokens with their targets, in order from number `first`.
pub(super) fn random_windows(
    seed: u64,
    first: usize,
    n: usize,
    [context, vocab]: [usize; 2],
) -> Vec<TrainingExample> {
    let window = |id: usize| {
        let tokens = random_tokens(seed, id as u64, context + 1, vocab);
        TrainingExample::window(&tokens, 1.0)
    };
    (first..first + n).map(window).collect()
}

/// The measurements of one rollout.
pub(super) struct Measured {
    pub(super) timings: Timings,
    pub(super) cache_bytes: usize,
    /// GPU: bytes of keys and values that were read after all sequences had their first token, and the lower bound.
    /// `None`: the device is the CPU, or there were no such tokens.
    pub(super) kv: Option<[u64; 2]>,
    pub(super) counters: Counters,
}

/// Runs one rollout, with drafts of `draft` if there is one, and measures its passes, the size of its KV cache and the
/// bytes read from it.
pub(super) fn measure(
    model: &Model,
    workload: Workload,
    options: EngineOptions,
    draft: Option<&Model>,
) -> Result<Measured, CliError> {
    measure_in(KvMemory::default(), model, workload, options, draft)
}

/// [`measure`] with a KV cache in `memory`.
pub(super) fn measure_in(
    memory: KvMemory,
    model: &Model,
    workload: Workload,
    options: EngineOptions,
    draft: Option<&Model>,
) -> Result<Measured, CliError> {
    let options = workload.engine(options);
    let hint = "reduce --batch, --prompt-len or --max-new";
    require_cache_in(&memory, Models { model, draft }, &options, hint)?;
    let mut engine = Engine::with_memory(model, options, memory)?;
    draft.map_or(Ok(()), |draft| engine.draft_with(draft))?;
    let sampling = SampleOptions {
        temperature: workload.temperature,
        top_p: (workload.top_p < 1.0).then_some(workload.top_p),
        ..SampleOptions::default()
    };
    let request = |id| Request {
        id,
        options: sampling,
        ..Request::greedy(&random_tokens(0, id, workload.prompt_len, model.config().vocab), workload.max_new)
    };
    if workload.one_prompt {
        engine.submit_group(request(0), workload.batch)?;
    } else {
        (0..workload.batch as u64).try_for_each(|id| engine.submit(request(id)).map(|_| ()))?;
    }
    let (mut has_token, mut start, mut needed) = (vec![false; workload.batch], None, 0);
    let (timings, cache_bytes) = timed::run(&mut engine, &mut |events| {
        if start.is_some() {
            needed += events.iter().map(|e| Ideal::kv_before(model, options.kv, e.position)).sum::<u64>();
        }
        events.iter().for_each(|e| has_token[e.index] = true);
        if start.is_none() && has_token.iter().all(|&b| b) {
            start = model.device().gpu_counters();
        }
        Ok(Vec::new())
    })?;
    let read = |start| model.device().gpu_counters().map(|t| t.since(start).kv_read);
    let kv = start.and_then(read).filter(|_| needed > 0).map(|read| [read, needed]);
    Ok(Measured { timings, cache_bytes, kv, counters: engine.counters() })
}
