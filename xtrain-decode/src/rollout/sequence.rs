//! One sequence on its way through the engine.
use xtrain_model::Config;
use xtrain_tensor::faults;

use super::{Completion, Event, FinishReason, Request};
use crate::error::{Error, Result};
use crate::sampler::{Address, Sampler};

/// A request, and what has come of it.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) index: usize,
    /// The index of the first request with this very prompt, of those submitted together.
    pub(super) group: usize,
    pub(super) request: Request,
    /// Which of the engine's samplers draws for it.
    pub(super) sampler: usize,
    /// The prompt and the new tokens.
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
    /// With room for every token it may come to have.
    pub(super) fn new(index: usize, group: usize, request: Request, cfg: &Config) -> Sequence {
        let all = request.positions(cfg);
        let mut tokens = Vec::with_capacity(all);
        tokens.extend_from_slice(&request.prompt);
        let new = || Vec::with_capacity(all - tokens.len());
        let (logprobs, processed_logprobs) = (new(), new());
        let (sampler, done, lane) = (0, 0, 0);
        let (waits, end) = (false, None);
        Sequence {
            index,
            group,
            request,
            sampler,
            tokens,
            done,
            lane,
            waits,
            end,
            logprobs,
            processed_logprobs,
        }
    }

    pub(super) fn prompt_len(&self) -> usize {
        self.request.prompt.len()
    }

    /// Whether it has no new token yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.tokens.len() == self.prompt_len()
    }

    /// Whether its room holds the whole prompt.
    pub(super) fn holds_prompt(&self) -> bool {
        !self.waits && self.done >= self.prompt_len()
    }

    /// Draws the next token from `logits`; `first` is the id of the first sequence of the step.
    pub(super) fn draw(
        &mut self,
        sampler: &mut Sampler,
        logits: &[f32],
        cfg: &Config,
        first: u64,
    ) -> Result<Event> {
        let (id, seed, position) = (self.request.id, self.request.seed, self.tokens.len());
        let addressed = if faults::on("shared-random-state") { first } else { id };
        let address = Address { seed, id: addressed, position: position as u32 };
        let history = if self.request.options.repetition_penalty.is_some() { &self.tokens[..] } else { &[] };
        let choice = sampler.pick(logits, history, address).map_err(|source| {
            self.end = Some(End::Refused);
            Error::Sample { id, position, source }
        })?;
        self.tokens.push(choice.token);
        self.logprobs.push(choice.logprob);
        self.processed_logprobs.push(choice.processed_logprob);
        let finish = self.request.ends(choice.token, self.logprobs.len(), cfg);
        self.end = finish.map(End::Finished);
        Ok(Event {
            index: self.index,
            id,
            position,
            token: choice.token,
            logprob: choice.logprob,
            processed_logprob: choice.processed_logprob,
            finish,
        })
    }

    pub(super) fn into_completion(self, finish_reason: FinishReason) -> Completion {
        let prompt_len = self.prompt_len();
        let mut tokens = self.tokens;
        tokens.drain(..prompt_len);
        Completion {
            index: self.index,
            id: self.request.id,
            prompt_len,
            tokens,
            logprobs: self.logprobs,
            processed_logprobs: self.processed_logprobs,
            finish_reason,
        }
    }
}
