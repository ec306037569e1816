//! What the engine gives: tokens as they come, and whole completions.
use std::fmt;

use xtrain_model::tokenizer::Tokenizer;

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// Its last token is an end of text.
    Eos,
    /// Its last token is one it was to stop at, or the caller stopped it.
    Stop,
    /// It has as many new tokens as were asked for.
    Length,
    /// It fills the model's positions.
    Context,
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FinishReason::Eos => "eos",
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
        })
    }
}

/// A finished sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// Its place in the order of submission.
    pub index: usize,
    /// Its own number.
    pub id: u64,
    /// Tokens of its prompt.
    pub prompt_len: usize,
    /// The new tokens, the one that ended it included.
    pub tokens: Vec<u32>,
    /// The log-probability of each under the logits as they are.
    pub logprobs: Vec<f32>,
    /// The log-probability of each under penalty, temperature and filters.
    pub processed_logprobs: Vec<f32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

impl Completion {
    /// The tokens that are text: all, without the end of text that ended it. The pieces of a
    /// [`Stream`](xtrain_model::tokenizer::Stream) over them concatenate to [`Completion::text`].
    pub fn text_tokens(&self) -> &[u32] {
        let ended = usize::from(self.finish_reason == FinishReason::Eos);
        &self.tokens[..self.tokens.len().saturating_sub(ended)]
    }

    /// The text of the completion.
    pub fn text(&self, tokenizer: &Tokenizer) -> String {
        tokenizer.decode(self.text_tokens())
    }
}

/// A new token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// The place of its sequence in the order of submission.
    pub index: usize,
    /// The sequence's own number.
    pub id: u64,
    /// The token's position.
    pub position: usize,
    /// The token.
    pub token: u32,
    /// Its log-probability under the logits as they are.
    pub logprob: f32,
    /// Its log-probability under penalty, temperature and filters.
    pub processed_logprob: f32,
    /// Why the sequence ends with it, if it does.
    pub finish: Option<FinishReason>,
}

impl Event {
    /// Whether the token is one of [`Completion::text_tokens`].
    pub fn is_text(&self) -> bool {
        self.finish != Some(FinishReason::Eos)
    }
}

/// A row of logits, for who wants to look.
#[derive(Debug, Clone, Copy)]
pub struct LogitRow<'a> {
    /// The place of its sequence in the order of submission.
    pub index: usize,
    /// The sequence's own number.
    pub id: u64,
    /// The position of the row; the logits are of the token after it.
    pub position: usize,
    /// `[V]`.
    pub logits: &'a [f32],
}

/// What one step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step<'a> {
    /// The new tokens.
    pub events: &'a [Event],
    /// Forward passes.
    pub passes: usize,
    /// Rows of prompts that ran.
    pub prefill_rows: usize,
    /// Rows of new tokens that ran.
    pub decode_rows: usize,
    /// Rows that the head ran on.
    pub head_rows: usize,
}

/// What an engine has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Forward passes.
    pub passes: u64,
    /// Rows that went through the layers: of one sequence its prompt and new tokens less one.
    pub layer_rows: u64,
    /// Those of them at positions of a prompt; of completions of one prompt they run once.
    pub prefill_rows: u64,
    /// Rows that went through the head: of one sequence its new tokens.
    pub head_rows: u64,
    /// Rows that ran for nothing: of sequences whose end the host had not seen yet. They are none of the other rows.
    pub surplus_rows: u64,
    /// Sequences that took a prompt from another's room.
    pub forks: u64,
    /// Rows that did not run because an earlier sequence had left theirs; see
    /// [`PrefixCaching`](super::PrefixCaching).
    pub prefix_cache_hits: u64,
    /// Sequences that gave up their room, to be recomputed.
    pub preemptions: u64,
}
