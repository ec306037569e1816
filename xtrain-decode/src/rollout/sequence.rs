//! One sequence on its way through the engine.
use std::sync::Arc;

use xtrain_model::Config;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::SampleRow;

use super::{Completion, Event, FinishReason, Request};
use crate::error::{Error, Result};
use crate::sampler::{Address, Choice, SampleOptions, Sampler};

/// A request, and what has come of it. While it waits for its first place it holds nothing of its own.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) index: usize,
    /// The index of the first request with this very prompt, of those submitted together.
    pub(super) group: usize,
    /// Its own number.
    pub(super) id: u64,
    /// What was asked for, under the id of the first of the group.
    pub(super) request: Arc<Request>,
    /// Which of the engine's samplers draws for it.
    pub(super) sampler: usize,
    /// The prompt and the new tokens, once it has had a place.
    pub(super) tokens: Vec<u32>,
    /// Tokens that the cache holds.
    pub(super) done: usize,
    /// Its number in the cache.
    pub(super) lane: u32,
    /// Whether another sequence is computing its prompt.
    pub(super) waits: bool,
    pub(super) end: Option<End>,
    logprobs: Vec<f32>,
    processed_logprobs: Vec<f32>,
}

/// How a sequence ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Finished(FinishReason),
    /// Its logits gave no token.
    Refused,
}

impl Sequence {
    /// The `n`-th completion of `request`, whose first has the place `first` in the order of submission.
    pub(super) fn new(request: Arc<Request>, first: usize, n: usize, sampler: usize) -> Sequence {
        Sequence {
            index: first + n,
            group: first,
            id: request.id + n as u64,
            request,
            sampler,
            tokens: Vec::new(),
            done: 0,
            lane: 0,
            waits: false,
            end: None,
            logprobs: Vec::new(),
            processed_logprobs: Vec::new(),
        }
    }

    /// Takes the place `lane`: the first time with room for every token that it may come to have, so that
    /// no step allocates.
    pub(super) fn take_lane(&mut self, lane: u32, cfg: &Config) {
        self.lane = lane;
        if self.tokens.is_empty() {
            let (all, prompt) = (self.request.required_len(cfg), &self.request.prompt);
            self.tokens.reserve_exact(all);
            self.tokens.extend_from_slice(prompt);
            self.logprobs.reserve_exact(all - prompt.len());
            self.processed_logprobs.reserve_exact(all - prompt.len());
        }
    }

    pub(super) fn prompt_len(&self) -> usize {
        self.request.prompt.len()
    }

    /// Whether it has no new token yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.logprobs.is_empty()
    }

    /// Whether its room holds the whole prompt.
    pub(super) fn holds_prompt(&self) -> bool {
        !self.waits && self.done >= self.prompt_len()
    }

    /// DeviceSampler the next token from `logits`; `first` is the id of the first sequence of the step.
    pub(super) fn draw(
        &mut self,
        sampler: &mut Sampler,
        logits: &[f32],
        cfg: &Config,
        first: u64,
    ) -> Result<Event> {
        let choice = sampler.pick(logits, self.history(), self.address(first)).map_err(|source| {
            self.end = Some(End::Refused);
            Error::Sample { id: self.id, position: self.tokens.len(), source }
        })?;
        Ok(self.accept(choice, cfg))
    }

    /// Where the random number of the next token stands; `first` is the id of the first sequence of the
    /// step.
    fn address(&self, first: u64) -> Address {
        let id = if faults::on(Fault::SharedRandomState) { first } else { self.id };
        Address { seed: self.request.seed, id, position: self.tokens.len() as u32 }
    }

    /// The ids that the sampler looks at.
    fn history(&self) -> &[u32] {
        if self.request.options.repetition_penalty.is_some() { &self.tokens } else { &[] }
    }

    /// Steps until it ends for want of tokens or positions.
    pub(super) fn left(&self, cfg: &Config) -> usize {
        self.request.required_len(cfg) - self.tokens.len()
    }

    /// How a device draws the next token, or that of so many steps `ahead`; `first` as for [`Sequence::draw`].
    pub(super) fn sample_row(&self, first: u64, ahead: u32) -> SampleRow<'_> {
        let SampleOptions { temperature, top_k, top_p, min_p, repetition_penalty } = self.request.options;
        let Address { seed, id, position } = self.address(first);
        SampleRow {
            seed,
            id,
            position: position + ahead,
            temperature,
            top_k: top_k.unwrap_or(0) as u32,
            top_p: top_p.unwrap_or(1.0),
            min_p: min_p.unwrap_or(0.0),
            penalty: repetition_penalty.unwrap_or(1.0),
            seen: self.history(),
        }
    }

    /// Takes the next token.
    pub(super) fn accept(&mut self, choice: Choice, cfg: &Config) -> Event {
        let position = self.tokens.len();
        self.tokens.push(choice.token);
        self.logprobs.push(choice.logprob);
        self.processed_logprobs.push(choice.processed_logprob);
        let finish = self.request.ends(choice.token, self.logprobs.len(), cfg);
        self.end = finish.map(End::Finished);
        Event {
            index: self.index,
            id: self.id,
            position,
            token: choice.token,
            logprob: choice.logprob,
            processed_logprob: choice.processed_logprob,
            finish,
        }
    }

    pub(super) fn into_completion(self, finish_reason: FinishReason) -> Completion {
        let prompt_len = self.prompt_len();
        let mut tokens = self.tokens;
        tokens.drain(..prompt_len.min(tokens.len()));
        Completion {
            index: self.index,
            id: self.id,
            prompt_len,
            tokens,
            logprobs: self.logprobs,
            processed_logprobs: self.processed_logprobs,
            finish_reason,
        }
    }
}
