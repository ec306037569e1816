//! One optimizer step on completions with advantages.
use std::ops::Range;

use super::batch::Sample;
use super::examples::{Examples, TokenValues, Weighted};
use crate::decode::SampleOptions;
use crate::grpo::Error;
use crate::model::rl::{PolicyLoss, PolicyMetrics, PolicyRow};
use crate::model::{LogitsProcessing, Model, StepReport, Trainer, TrainingExample, objective};
use crate::tensor::faults::{self, Fault};
use crate::tensor::ops::KeptSet;

/// Whether the weights are still those that sampled the completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// They are: every log-probability must have the sampler's bits.
    Sampling,
    /// They have been updated since.
    Updated,
}

/// The operands of an optimizer step.
#[derive(Debug, Clone, Copy)]
pub struct StepInput<'a> {
    /// The completions.
    pub completions: &'a [Weighted<'a>],
    /// Whether the weights are those that sampled.
    pub policy: Policy,
    /// The number of tokens that `dapo`, `cispo` and `vespo` divide by: those of the generation batch divided by the
    /// number of its optimizer steps in one pass.
    pub loss_tokens: f64,
    /// Added to the number of tokens of the run.
    pub new_tokens: usize,
}

/// The result of an optimizer step.
#[derive(Debug, Clone)]
pub struct UpdateReport {
    /// The step of the optimizer.
    pub step: StepReport,
    /// The policy loss.
    pub loss: f64,
    /// Metrics of the loss.
    pub metrics: PolicyMetrics,
    /// Mean entropy of the tokens of the completions in the backward pass. `None`: there were none.
    pub entropy: Option<f64>,
    /// Completions in the backward pass: those of training examples with a loss weight other than zero.
    pub trained: usize,
    /// Rows of the backward pass.
    pub rows: usize,
    /// The comparison with the sampler. `None`: the weights have changed since the rollouts.
    pub agreement: Option<Agreement>,
}

/// The log-probabilities of the backward pass minus those of the sampler. A step with a difference is an error, so the
/// values are 0; they are computed, not assumed.
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
    fn add(&mut self, sample: &Sample, trainer: &[f64]) {
        let pairs = sample.logprobs.iter().zip(trainer).zip(&sample.mask);
        for ((&a, b), _) in pairs.filter(|(_, sampled)| **sampled) {
            let difference = (b - f64::from(a)).abs();
            (self.tokens, self.sum, self.max) =
                (self.tokens + 1, self.sum + difference, self.max.max(difference));
        }
    }
}

/// Optimizer steps with one loss.
#[derive(Debug, Clone)]
pub struct Updater {
    /// The loss.
    pub loss: PolicyLoss,
    /// The sampling options of the rollouts.
    pub sampling: SampleOptions,
    /// How completions become training examples.
    pub examples: Examples,
}

impl Updater {
    /// The processing of the trainer's logits: that of the sampler.
    pub fn processing(&self) -> LogitsProcessing {
        let SampleOptions { temperature, top_k, top_p, min_p, .. } = self.sampling;
        LogitsProcessing { temperature, top_k, top_p: top_p.unwrap_or(1.0), min_p: min_p.unwrap_or(0.0) }
    }

    /// One optimizer step. Training examples whose loss weights and entropy bonuses are all exactly zero are skipped,
    /// which does not change a bit; if all are, the weights stay as they are.
    ///
    /// # Errors
    /// [`Error::TokensChanged`] for a completion whose tokens are not the sampled ones. [`Error::Mismatch`] if the policy
    /// is the sampling one and a log-probability differs from the sampler's in any bit, with unchanged weights. As
    /// [`Trainer::gradient`] and [`Trainer::apply`].
    pub fn step(&self, trainer: &mut Trainer, input: &StepInput<'_>) -> Result<UpdateReport, Error> {
        let StepInput { completions, policy, loss_tokens, new_tokens } = *input;
        check_tokens(completions)?;
        let values = match policy {
            Policy::Sampling if !self.loss.needs_entropy() => None,
            _ => Some(self.values(&trainer.model, completions)?),
        };
        if let (Policy::Sampling, Some(values)) = (policy, &values) {
            for (completion, values) in completions.iter().zip(values) {
                check(completion, &values.logp)?;
            }
        }
        let old: Vec<Vec<f64>> = completions.iter().map(|c| widen(&c.sample.logprobs)).collect();
        let masks: Vec<Vec<bool>> = completions.iter().map(Weighted::mask).collect();
        let rows: Vec<PolicyRow<'_>> = (0..completions.len())
            .map(|i| PolicyRow {
                logp: values.as_ref().map_or(&old[i], |values| &values[i].logp),
                old: &old[i],
                reference: completions[i].reference.as_deref(),
                sampler: None,
                entropy: values.as_ref().map(|values| &values[i].entropy[..]),
                mask: &masks[i],
                advantage: completions[i].advantage,
                truncated: completions[i].sample.truncated(),
            })
            .collect();
        let output = self.loss.evaluate_part(&rows, loss_tokens)?;
        let factors = |i: usize, t: usize| (output.weights[i][t] as f32, output.bonus[i][t] as f32);
        let is_trained = |part: &Range<usize>| {
            let all = faults::on(Fault::ZeroWeightsTrained);
            all || part.clone().any(|i| (0..masks[i].len()).any(|t| factors(i, t) != (0.0, 0.0)))
        };
        let parts: Vec<Range<usize>> = self.examples.parts(completions).filter(is_trained).collect();
        let example = |part: &Range<usize>| {
            self.examples.example(&completions[part.clone()], |i, t| factors(part.start + i, t))
        };
        let examples: Vec<TrainingExample> = parts.iter().map(example).collect();
        let mut report = UpdateReport {
            step: StepReport::default(),
            loss: output.loss,
            // the entropy of a step is that of its backward pass
            metrics: PolicyMetrics { entropy: None, ..output.metrics },
            entropy: None,
            trained: parts.iter().map(Range::len).sum(),
            rows: examples.iter().map(TrainingExample::rows).sum(),
            agreement: None,
        };
        if examples.is_empty() {
            report.step = trainer.skip_step(new_tokens);
            return Ok(report);
        }
        let gradient = trainer.gradient(&examples, self.processing(), self.examples.per_pass())?;
        let mut rows = gradient.values.iter().copied();
        let (mut tokens, mut entropy) = (0, 0.0);
        for i in parts.into_iter().flatten() {
            let found = self.examples.values_of(&completions[i], &mut rows);
            entropy += found.entropy.iter().sum::<f64>();
            tokens += completions[i].sample.sampled();
            match policy {
                Policy::Sampling => {
                    check(&completions[i], &found.logp)?;
                    let agreement = report.agreement.get_or_insert_default();
                    agreement.add(completions[i].sample, &found.logp);
                }
                Policy::Updated if values.as_ref().is_some_and(|values| values[i].logp != found.logp) => {
                    return Err(Error::Unstable { prompt: completions[i].group.prompt_id });
                }
                Policy::Updated => {}
            }
        }
        report.entropy = Some(entropy / tokens as f64);
        report.step = trainer.apply(gradient, new_tokens)?;
        Ok(report)
    }

    /// The log-probabilities and entropies of all tokens of the completions under `model`.
    fn values(&self, model: &Model, completions: &[Weighted<'_>]) -> Result<Vec<TokenValues>, Error> {
        let mut all = Vec::with_capacity(completions.len());
        for (part, examples) in self.examples.passes(completions) {
            let mut rows = objective::values(model, &examples, self.processing())?.into_iter();
            all.extend(part.iter().map(|completion| self.examples.values_of(completion, &mut rows)));
        }
        Ok(all)
    }

    /// Whether the filters can remove a token.
    pub fn filters(&self) -> bool {
        let SampleOptions { top_k, top_p, min_p, .. } = self.sampling;
        top_k.is_some() || top_p.is_some() || min_p.is_some()
    }

    /// The tokens that the filters keep, per token of each completion, under the weights that sampled.
    ///
    /// # Errors
    /// [`Error::TokensChanged`]; [`Error::Mismatch`] if a log-probability differs from the sampler's in any bit; as
    /// [`objective::values`].
    pub fn kept_sets(
        &self,
        model: &Model,
        completions: &[Weighted<'_>],
    ) -> Result<Vec<Vec<Option<KeptSet>>>, Error> {
        check_tokens(completions)?;
        let mut all = Vec::with_capacity(completions.len());
        for (part, mut examples) in self.examples.passes(completions) {
            let values = objective::store_kept_sets(model, &mut examples, self.processing())?;
            let mut rows = values.into_iter();
            for completion in part {
                check(completion, &self.examples.values_of(completion, &mut rows).logp)?;
            }
            all.extend(self.examples.kept_sets_of(examples));
        }
        Ok(all)
    }

    /// The log-probabilities of all tokens under a reference model; 0 for appended tokens.
    ///
    /// # Errors
    /// [`Error::TokensChanged`]; as [`objective::values`].
    pub fn log_probs(&self, model: &Model, completions: &[Weighted<'_>]) -> Result<Vec<Vec<f64>>, Error> {
        check_tokens(completions)?;
        Ok(self.values(model, completions)?.into_iter().map(|values| values.logp).collect())
    }
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// Checks that the tokens of all completions are the sampled ones.
fn check_tokens(completions: &[Weighted<'_>]) -> Result<(), Error> {
    match completions.iter().find(|completion| !completion.sample.is_unchanged()) {
        None => Ok(()),
        Some(Weighted { group, sample, .. }) => {
            Err(Error::TokensChanged { prompt: group.prompt_id, sample_id: sample.id })
        }
    }
}

/// Checks that the trainer's log-probabilities have the sampler's bits.
fn check(completion: &Weighted<'_>, logp: &[f64]) -> Result<(), Error> {
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
