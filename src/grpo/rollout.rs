//! Rollouts: the completions of a generation batch.
use std::sync::Arc;

use super::Error;
use super::batch::{Group, Prompt, Sample};
use crate::decode::{Engine, EngineOptions, KvMemory, Request, SampleOptions, StopConditions};
use crate::model::Model;
use crate::model::tokenizer::Tokenizer;

/// How completions are generated.
#[derive(Debug, Clone)]
pub struct RolloutOptions {
    /// The seed of the run.
    pub seed: u64,
    /// Temperature and filters.
    pub sampling: SampleOptions,
    /// Longest completion in tokens.
    pub max_new: usize,
    /// Cache and batch of the engine. No result depends on them.
    pub engine: EngineOptions,
}

/// Maximum number of bytes of the KV cache that are allocated before the first token. A larger cache grows.
const RESERVED_BYTES: usize = 1 << 30;

/// A model with the memory of its KV cache, which rollouts with later weights reuse.
#[derive(Debug)]
pub struct RolloutModel<'a> {
    /// The model.
    pub model: &'a Model,
    /// The memory of the KV cache. It holds no prefix.
    pub memory: &'a mut KvMemory,
}

/// A group to generate.
#[derive(Debug, Clone)]
pub struct GroupRequest {
    /// The index of the prompt in its file, or its number in the sequence of a task.
    pub prompt_id: u64,
    /// The prompt.
    pub prompt: Arc<Prompt>,
    /// The id of the first completion. The others have the ids after it.
    pub first_id: u64,
    /// Number of completions.
    pub size: usize,
}

/// Generates all groups in one engine: B prompts x G completions, one prefill per prompt, finished sequences leave at
/// once. Returns them in the order of the requests. `progress` receives the number of finished completions after each
/// step; it returns `false` to stop early.
///
/// # Errors
/// As [`Engine::submit`] and [`Engine::step`]; [`Error::Interrupted`] if `progress` stops it.
pub fn rollout(
    RolloutModel { model, memory }: RolloutModel<'_>,
    tokenizer: &Tokenizer,
    requests: Vec<GroupRequest>,
    options: &RolloutOptions,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Vec<Group>, Error> {
    let total: usize = requests.iter().map(|request| request.size).sum();
    let longest = requests.iter().map(|request| request.prompt.ids.len()).max().unwrap_or(1);
    let max_seq_len = (longest + options.max_new).min(model.config().max_positions);
    let max_batch = options.engine.max_batch.min(total.max(1));
    let engine = EngineOptions { max_seq_len: Some(max_seq_len), max_batch, ..options.engine };
    let mut engine = Engine::with_memory(model, engine, std::mem::take(memory))?;
    for request in &requests {
        let GroupRequest { prompt, first_id, size, .. } = request;
        let stop = StopConditions { eos: tokenizer.eos_ids().to_vec(), tokens: Vec::new() };
        let request = Request {
            id: *first_id,
            seed: options.seed,
            prompt: prompt.ids.clone(),
            options: options.sampling,
            max_new: options.max_new,
            stop,
        };
        engine.submit_group(request, *size)?;
    }
    engine.reserve(RESERVED_BYTES)?;
    let mut finished = Vec::with_capacity(total);
    while !engine.is_idle() {
        engine.step()?;
        finished.extend(engine.take_finished());
        if !progress(finished.len()) {
            return Err(Error::Interrupted);
        }
    }
    *memory = engine.into_memory();
    finished.sort_by_key(|completion| completion.index);
    let mut finished = finished.into_iter();
    let group = |GroupRequest { prompt_id, prompt, size, .. }: GroupRequest| {
        let sample = |completion: crate::decode::Completion| {
            let text = completion.text(tokenizer);
            Sample::new(completion, text)
        };
        Group { prompt_id, prompt, samples: finished.by_ref().take(size).map(sample).collect() }
    };
    Ok(requests.into_iter().map(group).collect())
}
