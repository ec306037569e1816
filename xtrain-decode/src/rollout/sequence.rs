//! One sequence in the engine: its request and its tokens so far.
use std::collections::VecDeque;
use std::sync::Arc;

use xtrain_model::Config;
use xtrain_tensor::faults::{self, Fault};

use super::completion::{Completion, Event, FinishReason};
use super::guide::Guide;
use super::plan::{SampleSpec, SamplerId};
use super::request::Request;
use super::speculation::DraftControl;
use crate::offload::Offloaded;
use crate::sampler::{self, Address, Choice, SampleError, SampleOptions, TokenLogprob, TokenMask};

/// A request and its tokens so far. Until it runs for the first time it allocates no memory for tokens.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) index: usize,
    /// Index of the first sequence that was submitted with the same prompt in the same call.
    pub(super) group: usize,
    pub(super) id: u64,
    /// The place among the waiting sequences: a lower rank first, then a lower index.
    pub(super) rank: i64,
    /// Its slot in the batch, which is also its number in the cache.
    pub(super) slot: u32,
    /// Tokens whose keys and values the cache holds.
    pub(super) num_computed: usize,
    /// Another sequence is computing its prompt.
    pub(super) waits_for_prompt: bool,
    /// The index of the sequence with the same tokens whose rows it uses. It has no rows of its own then.
    pub(super) leader: Option<usize>,
    /// Number of sequences that use its rows.
    pub(super) followers: usize,
    /// Its computed rows in the offload store, if it was preempted and they are there.
    pub(super) offloaded: Option<Offloaded>,
    /// How it ended. `None`: it has not ended.
    pub(super) end: Option<End>,
    /// Tokens that may follow, to be verified in the next step.
    draft: Vec<u32>,
    /// Number of tokens to draft for the next step.
    pub(super) draft_len: usize,
    pub(super) draft_control: DraftControl,
    /// The request of the group, with the id of the first sequence in it.
    request: Arc<Request>,
    /// What its constraint allows next. `None`: it has no constraint, or has not run yet.
    guide: Option<Guide>,
    /// What the constraint allows after each drafted token. Empty without a constraint.
    draft_guides: VecDeque<Guide>,
    sampler: SamplerId,
    /// The prompt and the new tokens. Empty until it runs for the first time.
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    processed_logprobs: Vec<f32>,
    top_logprobs: Vec<Vec<TokenLogprob>>,
}

/// Maximum number of tokens that a sequence reserves memory for.
const MAX_RESERVED: usize = 1 << 22;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Finished(FinishReason),
    /// No token could be sampled from its logits.
    SamplingFailed,
}

impl Sequence {
    /// The `n`-th completion of `request`. `first` is the index of the group's first sequence.
    pub(super) fn new(request: Arc<Request>, first: usize, n: usize, sampler: SamplerId) -> Sequence {
        Sequence {
            index: first + n,
            group: first,
            id: request.id + n as u64,
            rank: 0,
            slot: 0,
            num_computed: 0,
            waits_for_prompt: false,
            leader: None,
            followers: 0,
            offloaded: None,
            end: None,
            draft: Vec::new(),
            draft_len: 0,
            draft_control: DraftControl::default(),
            request,
            guide: None,
            draft_guides: VecDeque::new(),
            sampler,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            processed_logprobs: Vec::new(),
            top_logprobs: Vec::new(),
        }
    }

    /// Assigns a sequence slot. The first time it reserves memory for all tokens, at most 2^22, so that `push` does not
    /// allocate.
    pub(super) fn assign_slot(&mut self, slot: u32, cfg: &Config) {
        self.slot = slot;
        if self.tokens.is_empty() {
            let prompt = &self.request.prompt;
            let total = self.request.required_len(cfg).min(MAX_RESERVED).max(prompt.len());
            self.tokens.reserve_exact(total);
            self.tokens.extend_from_slice(prompt);
            self.logprobs.reserve_exact(total - prompt.len());
            self.processed_logprobs.reserve_exact(total - prompt.len());
            let constraint = self.request.constraint.as_ref();
            self.guide = constraint.map(|shared| Guide::start(&*shared.0, &self.request.stop));
        }
    }

    pub(super) fn options(&self) -> &SampleOptions {
        &self.request.options
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens that the repetition penalty covers: all, or none without a penalty.
    pub(super) fn penalized_tokens(&self) -> &[u32] {
        if self.request.options.repetition_penalty.is_some() { &self.tokens } else { &[] }
    }

    /// Its tokens need the logits on the host: they have to match a constraint, or the most probable ones are requested.
    pub(super) fn samples_on_host(&self) -> bool {
        self.request.constraint.is_some() || self.request.top_logprobs > 0
    }

    /// The most probable tokens of a row of its logits, as many as are requested.
    pub(super) fn top_of(&self, logits: &[f32]) -> Vec<TokenLogprob> {
        sampler::top_logprobs(logits, self.request.top_logprobs)
    }

    /// The tokens that may follow its tokens and the first `drafted` drafted ones. `None`: all.
    ///
    /// # Errors
    /// Why its constraint does not tell them.
    pub(super) fn mask(&self, drafted: usize) -> Result<Option<&TokenMask>, SampleError> {
        if drafted > 0 && faults::on(Fault::DraftIgnoresConstraint) {
            return Ok(None);
        }
        let guide = if drafted == 0 { self.guide.as_ref() } else { self.draft_guides.get(drafted - 1) };
        guide.map(Guide::mask).transpose()
    }

    /// Tokens that may follow, to be verified in the next step.
    pub(super) fn draft(&self) -> &[u32] {
        &self.draft
    }

    /// Drafts `token` after the drafted tokens so far. Returns `false` if its constraint does not allow the token, or
    /// ends the sequence with it: such a token is not drafted.
    pub(super) fn push_draft(&mut self, token: u32) -> bool {
        if let Some(last) = self.draft_guides.back().or(self.guide.as_ref()) {
            let Some(next) = last.after_draft(token, &self.request.stop) else { return false };
            self.draft_guides.push_back(next);
        }
        self.draft.push(token);
        true
    }

    /// The empty draft, for its memory.
    pub(super) fn take_draft(&mut self) -> Vec<u32> {
        self.clear_draft();
        std::mem::take(&mut self.draft)
    }

    /// Drafts the beginning of `draft` that its constraint allows.
    pub(super) fn set_draft(&mut self, draft: Vec<u32>) {
        if self.guide.is_none() {
            self.draft = draft;
        } else {
            let _ = draft.into_iter().all(|token| self.push_draft(token));
        }
    }

    pub(super) fn clear_draft(&mut self) {
        self.draft.clear();
        self.draft_guides.clear();
    }

    pub(super) fn prompt(&self) -> &[u32] {
        &self.request.prompt
    }

    /// Tokens that the model has not run on.
    pub(super) fn num_pending(&self) -> usize {
        self.tokens.len() - self.num_computed
    }

    /// Number of tokens after the prompt.
    pub(super) fn new_tokens(&self) -> usize {
        self.logprobs.len()
    }

    /// It has no new token yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.logprobs.is_empty()
    }

    /// The cache holds its whole prompt.
    pub(super) fn holds_prompt(&self) -> bool {
        !self.waits_for_prompt && self.num_computed >= self.prompt().len()
    }

    /// Positions of the prompt and the most new tokens it may get.
    pub(super) fn required_len(&self, cfg: &Config) -> usize {
        self.request.required_len(cfg)
    }

    /// Tokens that it may still get before it reaches its length or the context limit.
    pub(super) fn remaining(&self, cfg: &Config) -> usize {
        self.required_len(cfg) - self.tokens.len()
    }

    /// How its next token is sampled. `first_id` is the id of the first running sequence.
    pub(super) fn sample_spec(&self, first_id: u64, shares_logits: bool) -> SampleSpec {
        let id = if faults::on(Fault::RngUsesFirstSequenceId) { first_id } else { self.id };
        let from_prompt = faults::on(Fault::RandomNumbersCountFromPrompt);
        let position = if from_prompt { self.logprobs.len() } else { self.tokens.len() } as u32;
        SampleSpec {
            sampler: self.sampler,
            address: Address { seed: self.request.seed, id, position },
            shares_logits,
        }
    }

    /// Appends the most probable tokens at the position of the next token, if they are requested.
    pub(super) fn push_top(&mut self, top: Vec<TokenLogprob>) {
        if self.request.top_logprobs > 0 {
            self.top_logprobs.push(top);
        }
    }

    /// Appends a new token and ends the sequence if the token ends it.
    pub(super) fn push(&mut self, choice: Choice, cfg: &Config) -> Event {
        let position = self.tokens.len();
        self.tokens.push(choice.token);
        self.logprobs.push(choice.logprob);
        self.processed_logprobs.push(choice.processed_logprob);
        self.advance_guide(choice.token);
        let is_complete = self.guide.as_ref().is_some_and(Guide::is_complete);
        let finish = self.request.finish_reason(choice.token, self.logprobs.len(), is_complete, cfg);
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

    /// Takes a new token into the constraint. What the constraint allows after a drafted token is known already.
    fn advance_guide(&mut self, token: u32) {
        if self.stops_at(token) {
            return;
        }
        let drafted = self.draft_guides.pop_front().filter(|guide| guide.token() == Some(token));
        if drafted.is_none() {
            self.draft_guides.clear();
        }
        let current = self.guide.take();
        self.guide = drafted.or_else(|| current.map(|guide| guide.after(token, &self.request.stop)));
    }

    /// Whether `token` ends it, whatever its length.
    pub(super) fn stops_at(&self, token: u32) -> bool {
        self.request.stop.reason(token).is_some()
    }

    pub(super) fn completion(&self, finish_reason: FinishReason) -> Completion {
        let prompt_len = self.prompt().len();
        Completion {
            index: self.index,
            id: self.id,
            prompt_len,
            tokens: self.tokens.get(prompt_len..).unwrap_or_default().to_vec(),
            logprobs: self.logprobs.clone(),
            processed_logprobs: self.processed_logprobs.clone(),
            top_logprobs: self.top_logprobs.clone(),
            finish_reason,
        }
    }

    /// The request for its continuation: its prompt is all tokens of this sequence, then `tokens`.
    pub(super) fn continuation(&self, tokens: &[u32], max_new: usize) -> Request {
        let all = if self.tokens.is_empty() { self.prompt() } else { &self.tokens };
        Request { id: self.id, prompt: [all, tokens].concat(), max_new, ..(*self.request).clone() }
    }

    /// The sequence of a continuation, with the slot and the cached rows of this one.
    pub(super) fn continued(&self, request: Request, index: usize, cfg: &Config) -> Sequence {
        let mut next = Sequence::new(Arc::new(request), index, 0, self.sampler);
        next.assign_slot(self.slot, cfg);
        next.num_computed = self.num_computed;
        next
    }

    /// Capacity of the token buffer, and whether `other` shares the request.
    #[cfg(test)]
    pub(super) fn memory(&self, other: &Sequence) -> (usize, bool) {
        (self.tokens.capacity(), Arc::ptr_eq(&self.request, &other.request))
    }
}
