//! What is asked of the engine.
use xtrain_model::Config;

use super::FinishReason;
use crate::error::{Error, Result};
use crate::sampler::SampleOptions;

/// One completion to be made. It is a function of the weights and of what stands here, nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The sequence's own number: with `seed` the address of its random numbers.
    pub id: u64,
    /// The run's seed.
    pub seed: u64,
    /// The tokens that are given, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub options: SampleOptions,
    /// The most new tokens, at least one.
    pub max_new: usize,
    /// The tokens that end the sequence.
    pub stop: StopConditions,
}

/// The tokens that end a sequence. The one that did stays in the completion, with its log-probability.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopConditions {
    /// Ends of text: [`FinishReason::Eos`]. Empty: they are ignored.
    pub eos: Vec<u32>,
    /// Others: [`FinishReason::Stop`].
    pub tokens: Vec<u32>,
}

impl StopConditions {
    /// Why `token` ends its sequence, if it does; a token in both lists is an end of text.
    pub fn reason(&self, token: u32) -> Option<FinishReason> {
        let eos = self.eos.contains(&token).then_some(FinishReason::Eos);
        eos.or_else(|| self.tokens.contains(&token).then_some(FinishReason::Stop))
    }
}

impl Request {
    /// Greedy, id 0, seed 0, ended by nothing but its length.
    pub fn greedy(prompt: &[u32], max_new: usize) -> Request {
        let (options, stop) = (SampleOptions::greedy(), StopConditions::default());
        Request { id: 0, seed: 0, prompt: prompt.to_vec(), options, max_new, stop }
    }

    /// Drawn at `temperature` (0: greedy) with `seed`, id 0, ended by nothing but its length.
    pub fn sampled(prompt: &[u32], max_new: usize, temperature: f32, seed: u64) -> Request {
        let options = SampleOptions { temperature, ..SampleOptions::default() };
        Request { seed, options, ..Request::greedy(prompt, max_new) }
    }

    /// The positions that the sequence may come to have in a model of `cfg`.
    pub fn required_len(&self, cfg: &Config) -> usize {
        self.prompt.len().saturating_add(self.max_new).min(cfg.max_positions)
    }

    /// Why the sequence ends with `token` as its `n`-th new one, if it does. Of several reasons: end of
    /// text, stop, length, context.
    pub(crate) fn ends(&self, token: u32, n: usize, cfg: &Config) -> Option<FinishReason> {
        let full = if n >= self.max_new {
            Some(FinishReason::Length)
        } else if self.prompt.len() + n >= cfg.max_positions {
            Some(FinishReason::Context)
        } else {
            None
        };
        self.stop.reason(token).or(full)
    }

    /// Refuses what a model of `cfg` cannot complete.
    ///
    /// # Errors
    /// An empty or too long prompt, a token outside the vocabulary, no new token asked for, a sampling
    /// option outside its range; each names the id.
    pub fn check(&self, cfg: &Config) -> Result<()> {
        let (id, got) = (self.id, self.prompt.len());
        if got == 0 {
            return Err(Error::EmptyPrompt { id });
        }
        if got >= cfg.max_positions {
            return Err(Error::PromptTooLong { id, want: cfg.max_positions - 1, got });
        }
        if let Some(position) = self.prompt.iter().position(|&t| t as usize >= cfg.vocab) {
            return Err(Error::Vocab { id, position, want: cfg.vocab, got: self.prompt[position] });
        }
        if self.max_new == 0 {
            return Err(Error::NothingAsked { id });
        }
        self.options.check().map_err(|source| Error::Sample { id, position: got, source })
    }
}
