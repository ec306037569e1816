//! Comparison of the trainer with the sampler.
use super::batch::Sample;
use super::examples::Weighted;
use crate::grpo::Error;

/// The log-probabilities of the backward pass minus those of the sampler. A step with a difference is an error, so
/// the values are 0; they are computed, not assumed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Agreement {
    /// Number of compared tokens.
    pub tokens: usize,
    /// Sum of the absolute differences.
    pub sum: f64,
    /// The greatest absolute difference.
    pub max: f64,
}

impl Agreement {
    pub(super) fn add(&mut self, sample: &Sample, trainer: &[f64]) {
        let pairs = sample.logprobs.iter().zip(trainer).zip(&sample.mask);
        for ((&a, b), _) in pairs.filter(|(_, sampled)| **sampled) {
            let difference = (b - f64::from(a)).abs();
            (self.tokens, self.sum, self.max) =
                (self.tokens + 1, self.sum + difference, self.max.max(difference));
        }
    }
}

/// Checks that the tokens of all completions are the sampled ones.
pub(super) fn check_tokens(completions: &[Weighted<'_>]) -> Result<(), Error> {
    match completions.iter().find(|completion| !completion.sample.is_unchanged()) {
        None => Ok(()),
        Some(Weighted { group, sample, .. }) => {
            Err(Error::TokensChanged { prompt: group.prompt_id, sample_id: sample.id })
        }
    }
}

/// Checks that the trainer's log-probabilities have the sampler's bits.
pub(super) fn check(completion: &Weighted<'_>, logp: &[f64]) -> Result<(), Error> {
    let sampler = &completion.sample.logprobs;
    let differs = |(a, b): (&f32, &f64)| a.to_bits() != (*b as f32).to_bits();
    match sampler.iter().zip(logp).position(differs) {
        None if sampler.len() == logp.len() => Ok(()),
        at => Err(Error::Mismatch {
            prompt: completion.group.prompt_id,
            sample_id: completion.sample.id,
            token: at.unwrap_or(logp.len()),
            sampler: at.map_or(f32::NAN, |at| sampler[at]),
            trainer: at.map_or(f32::NAN, |at| logp[at] as f32),
        }),
    }
}
