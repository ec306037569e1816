//! What the engine returns: tokens as they are sampled, completions, and counters.
use std::fmt;

use serde::{Deserialize, Serialize};
use xtrain_model::tokenizer::Tokenizer;

use crate::sampler::TokenLogprob;

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// Its last token is an end-of-text token.
    Eos,
    /// Its last token is a stop token, completes a stop text, or completes the text of its constraint, which nothing can
    /// continue; or the caller stopped it.
    Stop,
    /// It has the maximum number of new tokens.
    Length,
    /// It has reached the context limit: the maximum number of positions of the model.
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
    /// Index of the sequence in the order of submission.
    pub index: usize,
    /// The sequence id.
    pub id: u64,
    /// Number of prompt tokens.
    pub prompt_len: usize,
    /// The new tokens, including the one that ended the sequence.
    pub tokens: Vec<u32>,
    /// The log-probability of each new token under the unprocessed logits.
    pub logprobs: Vec<f32>,
    /// The log-probability of each new token after penalty, temperature, mask and filters.
    pub processed_logprobs: Vec<f32>,
    /// The most probable tokens at the position of each new token, under the unprocessed logits. Empty without
    /// [`Request::top_logprobs`](super::Request::top_logprobs).
    pub top_logprobs: Vec<Vec<TokenLogprob>>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

impl Completion {
    /// The tokens that are text: all but the end-of-text token that ended the sequence. The pieces of
    /// [`Tokenizer::stream_continuation`] over them concatenate to [`Completion::text`].
    pub fn text_tokens(&self) -> &[u32] {
        let ended = usize::from(self.finish_reason == FinishReason::Eos);
        &self.tokens[..self.tokens.len().saturating_sub(ended)]
    }

    /// Keeps the first `len` tokens.
    pub(super) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.logprobs.truncate(len);
        self.processed_logprobs.truncate(len);
        self.top_logprobs.truncate(len);
    }

    /// The text of the completion, which continues the text of its prompt.
    pub fn text(&self, tokenizer: &Tokenizer) -> String {
        tokenizer.decode_continuation(self.text_tokens())
    }
}

/// A new token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// Index of the sequence in the order of submission.
    pub index: usize,
    /// The sequence id.
    pub id: u64,
    /// The position of the token.
    pub position: usize,
    /// The token.
    pub token: u32,
    /// Its log-probability under the unprocessed logits.
    pub logprob: f32,
    /// Its log-probability after penalty, temperature and filters.
    pub processed_logprob: f32,
    /// Why the sequence ends with this token. `None`: it does not end.
    pub finish: Option<FinishReason>,
}

impl Event {
    /// Returns `true` if the token is one of [`Completion::text_tokens`].
    pub fn is_text(&self) -> bool {
        self.finish != Some(FinishReason::Eos)
    }
}

/// A row of logits, as passed to the callback of [`Engine::step_watched`](crate::Engine::step_watched).
#[derive(Debug, Clone, Copy)]
pub struct LogitRow<'a> {
    /// Index of the sequence in the order of submission.
    pub index: usize,
    /// The sequence id.
    pub id: u64,
    /// The position of the row. The logits predict the token after it.
    pub position: usize,
    /// `[V]`.
    pub logits: &'a [f32],
}

/// The results and the work of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step<'a> {
    /// The new tokens.
    pub events: &'a [Event],
    /// Forward passes.
    pub passes: usize,
    /// Prompt rows that ran.
    pub prefill_rows: usize,
    /// Decode rows that ran.
    pub decode_rows: usize,
    /// Rows that the LM head ran on.
    pub head_rows: usize,
}

/// Counts of the work of an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Forward passes.
    pub passes: u64,
    /// Rows that ran through the layers. For one sequence: prompt tokens + new tokens - 1. Rows that completions of a
    /// group share are counted once.
    pub layer_rows: u64,
    /// Prompt rows among them. The prompt of a group runs once.
    pub prefill_rows: u64,
    /// Rows that ran through the LM head. For one sequence: its new tokens.
    pub head_rows: u64,
    /// Rows that ran after the end of their sequence, because the host had not synchronized yet. No other counter
    /// includes them.
    pub surplus_rows: u64,
    /// Sequences that forked their rows from another sequence.
    pub forks: u64,
    /// Rows that did not run because the prefix cache held them; see [`PrefixCaching`](crate::PrefixCaching).
    pub prefix_cache_hits: u64,
    /// Rows that did not run because a snapshot held them; see [`Engine::snapshot`](crate::Engine::snapshot).
    pub snapshot_rows: u64,
    /// Rows that did not run again because a continued sequence kept them; see
    /// [`Engine::extend`](crate::Engine::extend).
    pub continued_rows: u64,
    /// Times that a sequence was preempted.
    pub preemptions: u64,
    /// Rows of preempted sequences that moved to the offload store; see [`Preemption`](crate::Preemption).
    pub offloaded_rows: u64,
    /// Rows that returned from it and did not run again.
    pub restored_rows: u64,
    /// Drafted tokens whose rows ran; see [`Speculation`](crate::Speculation). Rows of rejected ones are not in
    /// `layer_rows` and `head_rows`.
    pub drafted: u64,
    /// Drafted tokens that were accepted.
    pub accepted: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finish_reason_is_serialized_as_it_is_displayed() {
        for reason in [FinishReason::Eos, FinishReason::Stop, FinishReason::Length, FinishReason::Context] {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.to_string());
        }
    }

    #[test]
    fn a_truncated_completion_has_the_log_probabilities_of_its_tokens() {
        let top = [5, 6, 7].map(|token| vec![TokenLogprob { token, logprob: -1.0 }]);
        let mut completion = Completion {
            index: 0,
            id: 0,
            prompt_len: 1,
            tokens: vec![5, 6, 7],
            logprobs: vec![-1.0, -2.0, -3.0],
            processed_logprobs: vec![-0.1, -0.2, -0.3],
            top_logprobs: top.to_vec(),
            finish_reason: FinishReason::Stop,
        };
        completion.truncate(2);
        assert_eq!(completion.tokens, [5, 6]);
        assert_eq!(
            (completion.logprobs, completion.processed_logprobs),
            (vec![-1.0, -2.0], vec![-0.1, -0.2])
        );
        assert_eq!(completion.top_logprobs, top[..2]);
    }
}
