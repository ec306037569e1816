//! One optimizer step on completions with advantages.
use std::ops::Range;

use super::agreement::{Agreement, check, check_tokens};
use super::examples::{Examples, Weighted};
use super::step_pass::{PassOutput, StepPass};
use super::token_values::TokenValues;
use crate::decode::SampleOptions;
use crate::grpo::{Error, exchange};
use crate::model::comm::Communicator;
use crate::model::rl::{PolicyLoss, PolicyMetrics};
use crate::model::{LogitsProcessing, Model, StepReport, Trainer, objective, shard_samples};
use crate::tensor::faults::{self, Fault};
use crate::tensor::ops::{KeptSet, LogProb};

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
    /// Mean entropy of the tokens of the trained completions. `None`: there were none.
    pub entropy: Option<f64>,
    /// Completions of the training examples that have a loss weight or a bonus other than zero.
    pub trained: usize,
    /// Rows of these examples in the backward pass.
    pub rows: usize,
    /// The comparison with the sampler. `None`: the weights have changed since the rollouts.
    pub agreement: Option<Agreement>,
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

    /// One optimizer step, of which each process of the trainer computes its shards. Training examples whose loss
    /// weights and entropy bonuses are all exactly zero are skipped, which does not change a bit; if all are, the
    /// weights stay as they are.
    ///
    /// # Errors
    /// [`Error::TokensChanged`] for a completion whose tokens are not the sampled ones. [`Error::Mismatch`] if the
    /// policy is the sampling one and a log-probability differs from the sampler's in any bit, with unchanged weights.
    /// As [`Trainer::gradient`] and [`Trainer::apply`].
    pub fn step(&self, trainer: &mut Trainer, input: &StepInput<'_>) -> Result<UpdateReport, Error> {
        let StepInput { completions, policy, loss_tokens, new_tokens } = *input;
        check_tokens(completions)?;
        let operands = StepPass {
            loss: &self.loss,
            examples: self.examples,
            processing: self.processing(),
            completions,
            is_on_policy: policy == Policy::Sampling,
            loss_tokens,
        };
        let mut pass = operands.run(trainer)?;
        let trained: Vec<&[Weighted<'_>]> = pass.trained().map(|part| &completions[part]).collect();
        let mut report = UpdateReport {
            step: StepReport::default(),
            loss: pass.output.loss,
            // the entropy of a step is that of its backward pass
            metrics: PolicyMetrics { entropy: None, ..pass.output.metrics },
            entropy: None,
            trained: trained.iter().map(|part| part.len()).sum(),
            rows: trained.iter().map(|part| self.examples.rows(part)).sum(),
            agreement: None,
        };
        match pass.gradient.take().filter(|_| !trained.is_empty()) {
            None => report.step = trainer.skip_step(new_tokens),
            Some(gradient) => {
                let values = trainer.whole_values(&gradient)?;
                self.compare(input, &pass, &values, &mut report)?;
                report.step = trainer.apply(gradient, new_tokens)?;
            }
        }
        Ok(report)
    }

    /// Compares the log-probabilities `values` of the backward pass with those that the weights were computed from.
    /// Reports the agreement and the entropy of the trained completions.
    fn compare(
        &self,
        input: &StepInput<'_>,
        pass: &PassOutput,
        values: &[Option<LogProb>],
        report: &mut UpdateReport,
    ) -> Result<(), Error> {
        let mut rows = values.iter().copied();
        let (mut tokens, mut entropy) = (0, 0.0);
        for part in &pass.parts {
            let is_trained = pass.is_trained(part);
            for i in part.clone() {
                let completion = &input.completions[i];
                let found = self.examples.values_of(completion, &mut rows);
                let differs = |values: &Vec<TokenValues>| values[i].logp != found.logp;
                match input.policy {
                    Policy::Sampling => check(completion, &found.logp)?,
                    Policy::Updated if pass.values.as_ref().is_some_and(differs) => {
                        return Err(Error::Unstable { prompt: completion.group.prompt_id });
                    }
                    Policy::Updated => {}
                }
                if is_trained {
                    entropy += found.entropy.iter().sum::<f64>();
                    let sample = completion.sample;
                    let all = faults::on(Fault::AppendedTokensInEntropy);
                    tokens += if all { sample.tokens.len() } else { sample.sampled() };
                }
                if is_trained && input.policy == Policy::Sampling {
                    report.agreement.get_or_insert_default().add(completion.sample, &found.logp);
                }
            }
        }
        report.entropy = Some(entropy / tokens as f64);
        Ok(())
    }

    /// Whether the filters can remove a token.
    pub fn filters(&self) -> bool {
        let SampleOptions { top_k, top_p, min_p, .. } = self.sampling;
        top_k.is_some() || top_p.is_some() || min_p.is_some()
    }

    /// The tokens that the filters keep, per token of each completion, under the weights that sampled. Each process of
    /// `comm` computes a part of them.
    ///
    /// # Errors
    /// [`Error::TokensChanged`]; [`Error::Mismatch`] if a log-probability differs from the sampler's in any bit; as
    /// [`objective::values`]; a process has ended.
    pub fn kept_sets(
        &self,
        model: &Model,
        completions: &[Weighted<'_>],
        comm: &dyn Communicator,
    ) -> Result<Vec<Vec<Option<KeptSet>>>, Error> {
        check_tokens(completions)?;
        let parts: Vec<Range<usize>> = self.examples.parts(completions).collect();
        let own = &parts[shard_samples(parts.len(), comm.size(), comm.rank())];
        let mut all = Vec::new();
        for (pass, mut examples) in self.examples.passes(completions, own) {
            let values = objective::store_kept_sets(model, &mut examples, self.processing())?;
            let mut rows = values.into_iter();
            for completion in pass.into_iter().map(|i| &completions[i]) {
                check(completion, &self.examples.values_of(completion, &mut rows).logp)?;
            }
            all.extend(self.examples.kept_sets_of(examples));
        }
        exchange::kept_sets(comm, model.config().vocab, all)
    }

    /// The log-probabilities of all tokens under a reference model; 0 for appended tokens. Each process of `comm`
    /// computes a part of them.
    ///
    /// # Errors
    /// [`Error::TokensChanged`]; as [`objective::values`]; a process has ended.
    pub fn log_probs(
        &self,
        model: &Model,
        completions: &[Weighted<'_>],
        comm: &dyn Communicator,
    ) -> Result<Vec<Vec<f64>>, Error> {
        check_tokens(completions)?;
        let parts: Vec<Range<usize>> = self.examples.parts(completions).collect();
        let values = self.examples.values(model, completions, &parts, self.processing(), comm)?;
        Ok(values.into_iter().map(|(_, values)| values.logp).collect())
    }
}
