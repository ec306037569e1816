//! Convenience functions over the engine.
use xtrain_model::Model;

use super::completion::Completion;
use super::engine::Engine;
use super::options::EngineOptions;
use super::request::Request;
use crate::error::Result;

/// The greedy completion of `prompt`.
///
/// # Errors
/// As [`generate`].
pub fn generate_greedy_cached(model: &Model, prompt: &[u32], max_new: usize) -> Result<Completion> {
    generate_cached(model, prompt, max_new, 0.0, 0)
}

/// A completion of `prompt` sampled at `temperature` (0: greedy). The sequence id is 0.
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
    let completions = generate(model, vec![request], EngineOptions::default())?;
    Ok(completions.into_iter().next().expect("an accepted request gives one completion"))
}

/// `g` completions of one prompt, which runs once. Their ids are the id of `request` and the `g - 1` ids after it.
/// Each is bitwise equal to the completion of that id alone.
///
/// # Errors
/// As [`generate`]; [`Error::Option`](crate::Error::Option) for `g` = 0.
pub fn generate_cached_batch(model: &Model, request: Request, g: usize) -> Result<Vec<Completion>> {
    let options = EngineOptions { max_batch: g.clamp(1, 64), ..EngineOptions::default() };
    let mut engine = Engine::new(model, sized(options, model, std::slice::from_ref(&request)))?;
    engine.submit_group(request, g)?;
    engine.run()
}

/// The completions of `requests`, in their order. The cache is sized for the longest of them.
///
/// # Errors
/// As [`Engine::new`], [`Engine::submit`] and [`Engine::step`].
pub fn generate(model: &Model, requests: Vec<Request>, options: EngineOptions) -> Result<Vec<Completion>> {
    let max_batch = options.max_batch.min(requests.len().max(1));
    let options = EngineOptions { max_batch, ..options };
    let mut engine = Engine::new(model, sized(options, model, &requests))?;
    requests.into_iter().try_for_each(|request| engine.submit(request).map(|_| ()))?;
    engine.run()
}

/// `options` with `max_seq_len` set to the positions that `requests` need, unless it is set already.
fn sized(options: EngineOptions, model: &Model, requests: &[Request]) -> EngineOptions {
    let limits = options.kv.limits(model.config());
    let longest = requests.iter().map(|r| r.required_len(&limits)).max();
    EngineOptions { max_seq_len: options.max_seq_len.or(longest.map(|n| n.max(1))), ..options }
}
