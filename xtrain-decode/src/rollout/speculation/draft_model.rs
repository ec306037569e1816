//! Drafts from a smaller model with a KV cache of its own.
use xtrain_model::{Eager, Model, Result as ModelResult, Rows};
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::{Tensor, ops};

use crate::cache::{Cache, KvKind, KvMemory, Room, Snapshot};
use crate::error::{Error, Result};
use crate::rollout::model_handle::ModelHandle;
use crate::rollout::sequence::Sequence;
use crate::sampler::{Address, SampleOptions, Sampler};

/// Maximum number of missing rows of a sequence that the draft model computes in a step.
const CHUNK: usize = 256;

/// The draft model and its cache, in which a sequence has the number of its slot in the engine.
///
/// A drafted token is sampled with the options and the random number of the token that it stands for: two models with
/// similar distributions then often choose the same token.
#[derive(Debug)]
pub(in crate::rollout) struct DraftModel<'m> {
    model: ModelHandle<'m>,
    cache: Box<dyn Cache>,
    /// The tokens whose rows the cache holds, by sequence.
    held: Vec<Vec<u32>>,
    samplers: Vec<Sampler>,
}

/// A sequence that drafts: its index among the running ones, and its tokens with the drafted ones.
#[derive(Debug)]
struct Drafting {
    at: usize,
    slot: usize,
    tokens: Vec<u32>,
    left: usize,
    address: Address,
    options: SampleOptions,
}

impl<'m> DraftModel<'m> {
    /// A draft model for an engine of `model` with this room.
    ///
    /// # Errors
    /// [`Error::Option`] if the two models have vocabularies of different sizes.
    pub(in crate::rollout) fn new(
        draft: ModelHandle<'m>,
        model: &Model,
        room: Room,
    ) -> Result<DraftModel<'m>> {
        let (found, want) = (draft.config().vocab, model.config().vocab);
        if found != want && !faults::on(Fault::DraftVocabNotChecked) {
            let got = format!("{found} tokens, the model has {want}");
            return Err(Error::option("draft", "the vocabulary of the model", got));
        }
        let positions = room.positions.min(draft.config().max_positions);
        let own = Room { positions, slots: None, ..room };
        let cache = KvKind::default().cache(&draft, own, KvMemory::default())?;
        let cache = cache.expect("a paged cache is a cache");
        Ok(DraftModel { model: draft, cache, held: vec![Vec::new(); room.sequences], samplers: Vec::new() })
    }

    /// Cost of a pass of the draft model, in units of a pass of `model`: the ratio of their parameters.
    pub(in crate::rollout) fn cost(&self, model: &Model) -> f32 {
        self.model.config().n_params() as f32 / model.config().n_params() as f32
    }

    /// Drafts `draft_len` tokens for each sequence, or fewer at the end of the draft model's context. If more than
    /// [`CHUNK`] rows of a sequence are missing, this step computes the first [`CHUNK`] of them and the sequence gets no
    /// draft.
    ///
    /// # Errors
    /// If a forward pass fails. Some sequences may have drafts then, which the caller removes.
    pub(in crate::rollout) fn draft(&mut self, running: &mut [Sequence]) -> Result<()> {
        let all = self.drafting(running);
        let mut all = self.catch_up(all)?;
        while !all.is_empty() {
            let mut rows = Rows::default();
            let mut last = Vec::new();
            for one in &all {
                self.push_rows(&mut rows, one, one.tokens.len());
                last.push(rows.len() as u32 - 1);
            }
            let hidden = self.forward(&rows, &all)?;
            let logits = self.model.logits(&ops::gather_rows(&hidden, &last)?)?;
            let data = logits.read::<f32>()?;
            let width = self.model.config().vocab;
            for (one, logits) in all.iter_mut().zip(data.chunks_exact(width)) {
                let sampler = sampler(&mut self.samplers, one.options)?;
                let covered = if one.options.repetition_penalty.is_some() { &one.tokens[..] } else { &[] };
                let position = one.tokens.len() as u32;
                let (sampler, address) = (&mut self.samplers[sampler], Address { position, ..one.address });
                let sequence = &mut running[one.at];
                let mask = sequence.mask(sequence.draft().len());
                let choice = mask.and_then(|mask| sampler.pick_allowed(logits, covered, mask, address));
                // a row without a token drafts none
                one.left -= 1;
                match choice {
                    Ok(choice) if sequence.push_draft(choice.token) => one.tokens.push(choice.token),
                    _ => one.left = 0,
                }
            }
            all.retain(|one| one.left > 0);
        }
        Ok(())
    }

    /// The sequences that draft.
    fn drafting(&mut self, running: &[Sequence]) -> Vec<Drafting> {
        let context = self.model.config().max_positions;
        let mut all = Vec::new();
        for (at, sequence) in running.iter().enumerate().filter(|(_, s)| s.draft_len > 0) {
            let tokens = sequence.tokens().to_vec();
            let left = sequence.draft_len.min(context.saturating_sub(tokens.len()));
            if left > 0 {
                let address = sequence.sample_spec(running[0].id, false).address;
                let (slot, options) = (sequence.slot as usize, *sequence.options());
                all.push(Drafting { at, slot, tokens, left, address, options });
            }
        }
        all
    }

    /// Rewinds each sequence to its current tokens. If more than [`CHUNK`] rows are missing, it forks the longest common
    /// beginning from another sequence. If more than [`CHUNK`] are still missing, it computes [`CHUNK`] rows. Returns the
    /// sequences that can draft: those with fewer missing rows.
    fn catch_up(&mut self, all: Vec<Drafting>) -> Result<Vec<Drafting>> {
        let mut ready = Vec::with_capacity(all.len());
        for one in all {
            let want = &one.tokens[..one.tokens.len() - 1];
            let own = self.keep(one.slot, want)?;
            if want.len() - own > CHUNK {
                self.fork_longest(one.slot, want, own)?;
            }
            if !self.is_behind(&one) {
                ready.push(one);
                continue;
            }
            self.compute_chunk(&one)?;
            if faults::on(Fault::DraftModelCatchesUpAtOnce) {
                while self.is_behind(&one) {
                    self.compute_chunk(&one)?;
                }
                ready.push(one);
            }
        }
        Ok(ready)
    }

    fn compute_chunk(&mut self, one: &Drafting) -> ModelResult<()> {
        let mut rows = Rows::default();
        self.push_rows(&mut rows, one, self.held[one.slot].len() + CHUNK);
        self.forward(&rows, std::slice::from_ref(one)).map(drop)
    }

    /// Whether more than a chunk of the rows before the last one is missing.
    fn is_behind(&self, one: &Drafting) -> bool {
        one.tokens.len() - 1 - self.held[one.slot].len() > CHUNK
    }

    /// Replaces the `own` rows of `slot` by the longest beginning of `tokens` that another sequence holds, if it is
    /// longer.
    fn fork_longest(&mut self, slot: usize, tokens: &[u32], own: usize) -> ModelResult<()> {
        let longest = (0..self.held.len()).map(|from| (common(&self.held[from], tokens), from)).max();
        if let Some((len, from)) = longest.filter(|&(len, _)| len > own) {
            self.cache.fork(from as u32, slot as u32, len)?;
            self.held[slot] = self.held[from][..len].to_vec();
        }
        Ok(())
    }

    /// Removes the rows of `slot` that are not those of `tokens`. Returns the number of those that it keeps.
    fn keep(&mut self, slot: usize, tokens: &[u32]) -> ModelResult<usize> {
        let same = common(&self.held[slot], tokens);
        let len = if faults::on(Fault::DraftModelRowsStale) {
            self.held[slot].len().min(tokens.len())
        } else {
            same
        };
        self.cache.rewind(Snapshot { seq: slot as u32, len })?;
        self.held[slot].truncate(len);
        Ok(len)
    }

    /// Adds the rows of a sequence up to `end` that the cache does not hold.
    fn push_rows(&self, rows: &mut Rows, one: &Drafting, end: usize) {
        for pos in self.held[one.slot].len()..end {
            rows.push(one.slot as u32, pos as u32, one.tokens[pos]);
        }
    }

    fn forward(&mut self, rows: &Rows, all: &[Drafting]) -> ModelResult<Tensor> {
        let hidden = self.model.forward(&mut Eager, &mut *self.cache, rows)?;
        for one in all {
            let len = self.cache.seq_len(one.slot as u32);
            let held = &mut self.held[one.slot];
            held.extend_from_slice(&one.tokens[held.len()..len]);
        }
        Ok(hidden)
    }
}

/// Length of the common beginning.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The index of the sampler with these options, which is created if there is none.
fn sampler(samplers: &mut Vec<Sampler>, options: SampleOptions) -> Result<usize> {
    if let Some(at) = samplers.iter().position(|s| *s.options() == options) {
        return Ok(at);
    }
    let failed = |source| Error::Sample { id: 0, position: 0, source };
    samplers.push(Sampler::new(options).map_err(failed)?);
    Ok(samplers.len() - 1)
}
