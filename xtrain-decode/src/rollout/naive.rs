//! The oracles: no cache and no batch. Every token recomputes the whole sequence.
use xtrain_model::{Eager, KvStore, KvView, Model, NoCache, Qkv, Result as ModelResult, Rows};
use xtrain_tensor::{Dtype, Tensor, ops};

use super::completion::Completion;
use super::guide::Guide;
use super::request::Request;
use crate::cache::append_separately;
use crate::error::{Error, Result};
use crate::sampler::{Address, Sampler};

/// The completion of `request`, with a new forward pass over the whole sequence for every token. It shares only the
/// model and the sampler with the engine.
///
/// # Errors
/// As [`Engine::submit`](crate::Engine::submit) and [`Engine::step`](crate::Engine::step).
pub fn generate_naive(model: &Model, request: &Request) -> Result<Completion> {
    complete(model, request, |rows| Ok(model.forward(&mut Eager, &mut NoCache::new(rows)?, rows)?))
}

/// [`generate_naive`] with keys and values expanded to the query heads: [`rope`](ops::rope) rotates the
/// sequence, [`repeat_kv`](ops::repeat_kv) copies each kv head once for each of its query heads, and the attention
/// has as many kv heads as query heads. The results are bit-identical.
///
/// # Errors
/// As [`generate_naive`].
pub fn generate_naive_repeat_kv(model: &Model, request: &Request) -> Result<Completion> {
    complete(model, request, |rows| {
        let mut expanded = RepeatKv { n_heads: model.config().n_heads, store: NoCache::new(rows)? };
        Ok(model.forward(&mut Eager, &mut expanded, rows)?)
    })
}

/// [`generate_naive`] over int8 keys and values: the definition of [`KvKind::Int8`](crate::KvKind::Int8).
///
/// # Errors
/// As [`generate_naive`].
pub fn generate_naive_int8(model: &Model, request: &Request) -> Result<Completion> {
    complete(model, request, |rows| Ok(model.forward(&mut Eager, &mut NaiveInt8::new(rows)?, rows)?))
}

/// Samples tokens until the request ends. `hidden` gives the final hidden states `[T, C]` of a whole sequence.
fn complete(
    model: &Model,
    request: &Request,
    hidden: impl Fn(&Rows) -> Result<Tensor>,
) -> Result<Completion> {
    let (cfg, id, seed) = (model.config(), request.id, request.seed);
    request.check(cfg)?;
    let prompt_len = request.prompt.len();
    let failed = |position| move |source| Error::Sample { id, position, source };
    let mut sampler = Sampler::new(request.options).map_err(failed(prompt_len))?;
    let (mut all, mut logprobs, mut processed_logprobs) = (request.prompt.clone(), Vec::new(), Vec::new());
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

/// No cache, and one kv head for each query head.
struct RepeatKv {
    n_heads: usize,
    store: NoCache<Tensor>,
}

impl KvStore<Eager> for RepeatKv {
    fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> ModelResult<KvView<'_, Tensor>> {
        // `[N, nkv, hd]` → `[N, nh, hd]`: bf16 values are widened and rounded back, which is exact
        let expand = |x: &Tensor| -> ModelResult<Tensor> {
            Ok(ops::repeat_kv(&x.cast(Dtype::F32)?, self.n_heads)?.cast(x.dtype())?)
        };
        let (k, v) = (expand(&k)?, expand(&v)?);
        KvStore::<Eager>::extend(&mut self.store, layer, k, v, rows)
    }

    fn append_rotated(
        &mut self,
        _: &mut Eager,
        layer: usize,
        new: Qkv<'_, Tensor>,
        rows: &Rows,
    ) -> ModelResult<(Tensor, KvView<'_, Tensor>)> {
        append_separately(self, layer, new, rows)
    }
}

/// No cache: the rows of a pass attend to the int8 values of each other's keys and values, their own included
/// (docs/numerics.md, "Lossy caches"). It computes them one by one and shares no code with the int8 cache.
#[derive(Debug)]
pub struct NaiveInt8 {
    store: NoCache<Tensor>,
}

impl NaiveInt8 {
    /// For one pass over `rows`: whole sequences from position 0.
    ///
    /// # Errors
    /// As [`NoCache::new`].
    pub fn new(rows: &Rows) -> ModelResult<NaiveInt8> {
        Ok(NaiveInt8 { store: NoCache::new(rows)? })
    }

    /// Each head vector of `x`, quantized and dequantized.
    fn quantized(x: &Tensor) -> ModelResult<Tensor> {
        let mut values = x.to_f32()?.to_vec::<f32>()?;
        for head in values.chunks_exact_mut(x.width()) {
            let scale = head.iter().fold(0.0, |largest: f32, x| largest.max(x.abs())) / 127.0;
            for x in head {
                let quotient = if (*x / scale).is_finite() { *x / scale } else { 0.0 };
                let code = quotient.round_ties_even().clamp(-127.0, 127.0);
                *x = f32::from(code as i8) * scale;
            }
        }
        Ok(Tensor::new(x.device(), x.shape(), values)?.cast(x.dtype())?)
    }
}

impl KvStore<Eager> for NaiveInt8 {
    fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> ModelResult<KvView<'_, Tensor>> {
        let (k, v) = (Self::quantized(&k)?, Self::quantized(&v)?);
        KvStore::<Eager>::extend(&mut self.store, layer, k, v, rows)
    }

    fn append_rotated(
        &mut self,
        _: &mut Eager,
        layer: usize,
        new: Qkv<'_, Tensor>,
        rows: &Rows,
    ) -> ModelResult<(Tensor, KvView<'_, Tensor>)> {
        append_separately(self, layer, new, rows)
    }
}
