//! Requests: the input of the engine.
use xtrain_model::Config;
use xtrain_tensor::faults::{self, Fault};

use super::completion::FinishReason;
use crate::constraint::SharedConstraint;
use crate::error::{Error, Result};
use crate::sampler::SampleOptions;

/// A request for one completion. Its tokens depend only on the weights and on these fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The sequence id. With `seed` it is the address of the random numbers.
    pub id: u64,
    /// The seed of the run.
    pub seed: u64,
    /// The prompt, at least one token.
    pub prompt: Vec<u32>,
    /// How tokens are sampled.
    pub options: SampleOptions,
    /// Maximum number of new tokens, at least one.
    pub max_new: usize,
    /// The tokens that end the sequence.
    pub stop: StopConditions,
    /// What the text of the new tokens has to match. `None`: any text.
    pub constraint: Option<SharedConstraint>,
    /// Number of most probable tokens that [`Completion::top_logprobs`](super::Completion::top_logprobs) has for each new
    /// token. On a GPU, the host samples the whole batch of such a sequence, with a synchronization after each step.
    pub top_logprobs: usize,
}

/// The tokens that end a sequence. The last token stays in the completion, with its log-probability.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopConditions {
    /// End-of-text tokens: [`FinishReason::Eos`]. Empty: end-of-text tokens do not end the sequence.
    pub eos: Vec<u32>,
    /// Other stop tokens: [`FinishReason::Stop`].
    pub tokens: Vec<u32>,
}

impl StopConditions {
    /// The finish reason if `token` ends its sequence. A token in both lists is an end of text.
    pub fn reason(&self, token: u32) -> Option<FinishReason> {
        let eos = self.eos.contains(&token).then_some(FinishReason::Eos);
        eos.or_else(|| self.tokens.contains(&token).then_some(FinishReason::Stop))
    }
}

impl Request {
    /// Greedy sampling, id 0, seed 0, no stop tokens, no constraint, no most probable tokens.
    pub fn greedy(prompt: &[u32], max_new: usize) -> Request {
        let (options, stop) = (SampleOptions::greedy(), StopConditions::default());
        Request {
            id: 0,
            seed: 0,
            prompt: prompt.to_vec(),
            options,
            max_new,
            stop,
            constraint: None,
            top_logprobs: 0,
        }
    }

    /// Sampling at `temperature` (0: greedy) with `seed`, id 0, no stop tokens.
    pub fn sampled(prompt: &[u32], max_new: usize, temperature: f32, seed: u64) -> Request {
        let options = SampleOptions { temperature, ..SampleOptions::default() };
        Request { seed, options, ..Request::greedy(prompt, max_new) }
    }

    /// Positions that the sequence may need in a model of `cfg`: prompt and new tokens, up to the context limit.
    pub fn required_len(&self, cfg: &Config) -> usize {
        self.prompt.len().saturating_add(self.max_new).min(cfg.max_positions)
    }

    /// The finish reason if the sequence ends with `token` as its `n`-th new token. If several apply, the first of:
    /// end of text, stop, length, context. `is_complete`: nothing but an end of text may follow the token.
    pub(crate) fn finish_reason(
        &self,
        token: u32,
        n: usize,
        is_complete: bool,
        cfg: &Config,
    ) -> Option<FinishReason> {
        let complete = is_complete.then_some(FinishReason::Stop);
        let length = (n >= self.max_new).then_some(FinishReason::Length);
        let context = (self.prompt.len() + n >= cfg.max_positions).then_some(FinishReason::Context);
        let limit =
            if faults::on(Fault::ContextBeforeLength) { context.or(length) } else { length.or(context) };
        self.stop.reason(token).or(complete).or(limit)
    }

    /// Checks that a model of `cfg` can complete the request.
    ///
    /// # Errors
    /// An empty or too long prompt, a token outside the vocabulary, `max_new` = 0, a sampling option outside its
    /// range. Each error names the id.
    pub fn check(&self, cfg: &Config) -> Result<()> {
        let (id, len) = (self.id, self.prompt.len());
        let refuse = |what: String| Err(Error::Request { id, what });
        if len == 0 {
            return refuse("the prompt is empty, expected at least 1 token".into());
        }
        if len >= cfg.max_positions {
            let want = cfg.max_positions - 1;
            return refuse(format!("expected a prompt of at most {want} tokens, found {len}"));
        }
        if let Some((at, got)) = self.prompt.iter().enumerate().find(|&(_, &t)| t as usize >= cfg.vocab) {
            let want = cfg.vocab;
            return refuse(format!("prompt position {at}: expected a token id below {want}, found {got}"));
        }
        if self.max_new == 0 {
            return refuse("expected at least 1 new token, found 0".into());
        }
        self.options.check().map_err(|source| Error::Sample { id, position: len, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_request_has_id_0_and_ends_at_its_length_only() {
        let (greedy, sampled) = (Request::greedy(&[5, 6], 3), Request::sampled(&[5, 6], 3, 0.5, 9));
        assert_eq!([(greedy.id, greedy.seed), (sampled.id, sampled.seed)], [(0, 0), (0, 9)]);
        assert_eq!((greedy.options.temperature, sampled.options.temperature), (0.0, 0.5));
        for request in [greedy, sampled] {
            assert_eq!((request.prompt, request.max_new), (vec![5, 6], 3));
            assert!(request.stop.eos.is_empty() && request.stop.tokens.is_empty());
            assert!(request.constraint.is_none() && request.top_logprobs == 0);
        }
    }
}
