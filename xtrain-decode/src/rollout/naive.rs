//! The oracle: no cache, no batch, one fresh forward over the whole sequence for every token.
use xtrain_model::{Eager, Model, NoCache, Rows};

use super::{Completion, Request};
use crate::error::{Error, Result};
use crate::sampler::{Address, Sampler};

/// The completion of `request` by recomputing everything for every token. It shares the forward pass
/// and the sampler with the engine and nothing else.
///
/// # Errors
/// As [`Engine::submit`](super::Engine::submit) and [`Engine::step`](super::Engine::step).
pub fn generate_naive(model: &Model, request: &Request) -> Result<Completion> {
    let (cfg, id, seed) = (model.config(), request.id, request.seed);
    request.check(cfg)?;
    let prompt_len = request.prompt.len();
    let refused = |position| move |source| Error::Sample { id, position, source };
    let mut sampler = Sampler::new(request.options).map_err(refused(prompt_len))?;
    let (mut all, mut logprobs, mut processed_logprobs) = (request.prompt.clone(), Vec::new(), Vec::new());
    loop {
        let logits = last_logits(model, &all)?;
        let address = Address { seed, id, position: all.len() as u32 };
        let choice = sampler.pick(&logits, &all, address).map_err(refused(all.len()))?;
        all.push(choice.token);
        logprobs.push(choice.logprob);
        processed_logprobs.push(choice.processed_logprob);
        if let Some(finish_reason) = request.ends(choice.token, logprobs.len(), cfg) {
            let tokens = all.split_off(prompt_len);
            return Ok(Completion {
                index: 0,
                id,
                prompt_len,
                tokens,
                logprobs,
                processed_logprobs,
                finish_reason,
            });
        }
    }
}

/// The logits `[V]` after the last of `tokens`.
fn last_logits(model: &Model, tokens: &[u32]) -> Result<Vec<f32>> {
    let rows = Rows::whole(&[tokens]);
    let hidden = model.forward(&mut Eager, &mut NoCache::new(&rows)?, &rows)?;
    let last = super::gather::rows(&hidden, &[tokens.len() - 1])?;
    Ok(model.logits(&last)?.to_vec::<f32>().map_err(xtrain_model::Error::from)?)
}
