//! The usual calls, each a thin front of the engine.
use xtrain_model::Model;

use super::{Completion, Engine, EngineOptions, Request};
use crate::error::Result;

/// The greedy completion of `prompt`.
///
/// # Errors
/// As [`generate`].
pub fn generate_greedy_cached(model: &Model, prompt: &[u32], max_new: usize) -> Result<Completion> {
    only(generate(model, vec![Request::greedy(prompt, max_new)], EngineOptions::default())?)
}

/// A completion of `prompt` drawn at `temperature` (0: greedy); the sequence's id is 0.
///
/// # Errors
/// As [`generate`].
pub fn generate_cached(
    model: &Model,
    prompt: &[u32],
    max_new: usize,
    temperature: f32,
    seed: u64,
) -> Result<Completion> {
    let request = Request::sampled(prompt, max_new, temperature, seed);
    only(generate(model, vec![request], EngineOptions::default())?)
}

/// `g` completions of one prompt, which is computed once; their ids are those of `request` and the
/// `g - 1` after it. Each equals its single completion by bits.
///
/// # Errors
/// As [`generate`]; an option error for `g` = 0.
pub fn generate_cached_batch(model: &Model, request: Request, g: usize) -> Result<Vec<Completion>> {
    let options = EngineOptions { max_batch: g.clamp(1, 64), ..EngineOptions::default() };
    let mut engine = Engine::new(model, sized(options, model, std::slice::from_ref(&request)))?;
    engine.submit_group(request, g)?;
    engine.run()
}

/// The completions of `requests`, in their order. The cache is made for the longest of them.
///
/// # Errors
/// As [`Engine::new`], [`Engine::submit`] and [`Engine::step`].
pub fn generate(model: &Model, requests: Vec<Request>, options: EngineOptions) -> Result<Vec<Completion>> {
    let options = sized(options, model, &requests);
    let max_batch = options.max_batch.min(requests.len().max(1));
    let options = EngineOptions { max_batch, ..options };
    let mut engine = Engine::new(model, options)?;
    requests.into_iter().try_for_each(|request| engine.submit(request).map(|_| ()))?;
    engine.run()
}

/// `options` with no more positions for a sequence than `requests` need, unless they say how many.
fn sized(options: EngineOptions, model: &Model, requests: &[Request]) -> EngineOptions {
    let longest = requests.iter().map(|r| r.required_len(model.config())).max();
    EngineOptions { max_seq_len: options.max_seq_len.or(longest.map(|n| n.max(1))), ..options }
}

fn only(completions: Vec<Completion>) -> Result<Completion> {
    Ok(completions.into_iter().next().expect("one request that was not refused is one completion"))
}
