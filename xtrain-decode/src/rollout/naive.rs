//! The oracles: no cache and no batch. Every token recomputes the whole sequence.
use xtrain_model::{Eager, Model, NoCache, Rows};
use xtrain_tensor::{Tensor, ops};

use super::completion::Completion;
use super::guide::Guide;
use super::naive_kv::{expanded_kv, int8_kv, sinks_kv};
use super::request::Request;
use crate::cache::KvKind;
use crate::error::{Error, Result};
use crate::sampler::{Address, Sampler, top_logprobs};

/// The completion of `request`, with a new forward pass over the whole sequence for every token. It shares only the
/// model and the sampler with the engine.
///
/// # Errors
/// As [`Engine::submit`](crate::Engine::submit) and [`Engine::step`](crate::Engine::step).
pub fn generate_naive(model: &Model, request: &Request) -> Result<Completion> {
    complete(model, KvKind::Off, request, |rows| {
        Ok(model.forward(&mut Eager, &mut NoCache::new(rows)?, rows)?)
    })
}

/// [`generate_naive`] with keys and values expanded to the query heads: [`rope`](ops::rope) rotates the
/// sequence, [`repeat_kv`](ops::repeat_kv) copies each kv head once for each of its query heads, and the attention
/// has as many kv heads as query heads. The results are bit-identical.
///
/// # Errors
/// As [`generate_naive`].
pub fn generate_naive_repeat_kv(model: &Model, request: &Request) -> Result<Completion> {
    complete(model, KvKind::Off, request, |rows| {
        Ok(model.forward(&mut Eager, &mut expanded_kv(rows, model.config().n_heads)?, rows)?)
    })
}

/// [`generate_naive`] over int8 keys and values: the definition of [`KvKind::Int8`](crate::KvKind::Int8).
///
/// # Errors
/// As [`generate_naive`].
pub fn generate_naive_int8(model: &Model, request: &Request) -> Result<Completion> {
    complete(model, KvKind::Off, request, |rows| Ok(model.forward(&mut Eager, &mut int8_kv(rows)?, rows)?))
}

/// [`generate_naive`] over keys and values of sinks and a window: the definition of
/// [`KvKind::Sinks`](crate::KvKind::Sinks). The sequence may be longer than the model's context.
///
/// # Errors
/// As [`generate_naive`].
pub fn generate_naive_sinks(
    model: &Model,
    request: &Request,
    [sinks, window]: [usize; 2],
) -> Result<Completion> {
    complete(model, KvKind::Sinks { sinks, window }, request, |rows| {
        Ok(model.forward(&mut Eager, &mut sinks_kv(rows, [sinks, window])?, rows)?)
    })
}

/// Samples tokens until the request ends. `kv`: the kind of cache whose limits it has. `hidden` gives the final hidden
/// states `[T, C]` of a whole sequence.
fn complete(
    model: &Model,
    kv: KvKind,
    request: &Request,
    hidden: impl Fn(&Rows) -> Result<Tensor>,
) -> Result<Completion> {
    let (cfg, id, seed) = (&kv.limits(model.config()), request.id, request.seed);
    request.check(cfg)?;
    let prompt_len = request.prompt.len();
    let failed = |position| move |source| Error::Sample { id, position, source };
    let mut sampler = Sampler::new(request.options).map_err(failed(prompt_len))?;
    let (mut all, mut logprobs, mut processed_logprobs) = (request.prompt.clone(), Vec::new(), Vec::new());
    let mut top = Vec::new();
    loop {
        let last = ops::gather_rows(&hidden(&Rows::whole(&[&all]))?, &[all.len() as u32 - 1])?;
        let logits = model.logits(&last)?.to_vec::<f32>()?;
        let address = Address { seed, id, position: all.len() as u32 };
        let guide = guide(request, &all[prompt_len..]);
        let mask = guide.as_ref().map(Guide::mask).transpose().map_err(failed(all.len()))?;
        let choice = sampler.pick_allowed(&logits, &all, mask, address).map_err(failed(all.len()))?;
        all.push(choice.token);
        logprobs.push(choice.logprob);
        processed_logprobs.push(choice.processed_logprob);
        if request.top_logprobs > 0 {
            top.push(top_logprobs(&logits, request.top_logprobs));
        }
        let is_end = request.stop.reason(choice.token).is_some();
        let next = guide.filter(|_| !is_end).map(|guide| guide.after(choice.token, &request.stop));
        let is_complete = next.is_some_and(|next| next.is_complete());
        if let Some(finish_reason) = request.finish_reason(choice.token, logprobs.len(), is_complete, cfg) {
            let tokens = all.split_off(prompt_len);
            return Ok(Completion {
                index: 0,
                id,
                prompt_len,
                tokens,
                logprobs,
                processed_logprobs,
                top_logprobs: top,
                finish_reason,
            });
        }
    }
}

/// The constraint of `request` after these new tokens, computed from the first one on.
fn guide(request: &Request, new: &[u32]) -> Option<Guide> {
    let start = Guide::start(&*request.constraint.as_ref()?.0, &request.stop);
    Some(new.iter().fold(start, |guide, &token| guide.after(token, &request.stop)))
}
