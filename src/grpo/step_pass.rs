//! The loss weights of an optimizer step and its gradient.
use std::ops::Range;

use super::agreement::check;
use super::examples::{Examples, Weighted};
use super::token_values::TokenValues;
use crate::grpo::{Error, exchange};
use crate::model::rl::{ImportanceSamplingLevel, PolicyLoss, PolicyOutput, PolicyRow};
use crate::model::{LogitsProcessing, StepExamples, StepGradient, Trainer, TrainingExample};
use crate::tensor::faults::{self, Fault};
use crate::tensor::ops::{LogProb, Target};

/// The operands of the gradient.
pub(super) struct StepPass<'a> {
    pub(super) loss: &'a PolicyLoss,
    pub(super) examples: Examples,
    pub(super) processing: LogitsProcessing,
    /// The completions of the step.
    pub(super) completions: &'a [Weighted<'a>],
    /// Whether the weights of the model are those that sampled.
    pub(super) is_on_policy: bool,
    /// As [`StepInput::loss_tokens`](super::update::StepInput::loss_tokens).
    pub(super) loss_tokens: f64,
}

/// The result.
pub(super) struct PassOutput {
    /// The loss of the step, with the loss weights of all tokens.
    pub(super) output: PolicyOutput,
    /// The completions of each example of the backward pass. All weights of an example can be zero if they were
    /// computed during the pass.
    pub(super) parts: Vec<Range<usize>>,
    /// The values of all completions that the loss was computed from. `None`: the sampler's.
    pub(super) values: Option<Vec<TokenValues>>,
    /// The gradient. `None`: no example is in the backward pass.
    pub(super) gradient: Option<StepGradient>,
}

impl PassOutput {
    /// Whether an example of the backward pass has a weight other than zero.
    pub(super) fn is_trained(&self, part: &Range<usize>) -> bool {
        let PolicyOutput { weights, bonus, .. } = &self.output;
        let mut all = part.clone().flat_map(|i| weights[i].iter().chain(&bonus[i]));
        faults::on(Fault::ZeroWeightsTrained) || all.any(|&x| x as f32 != 0.0)
    }

    /// The examples with a weight other than zero.
    pub(super) fn trained(&self) -> impl Iterator<Item = Range<usize>> {
        self.parts.iter().filter(|part| self.is_trained(part)).cloned()
    }
}

impl StepPass<'_> {
    /// The weights come from the sampler's values if these are the current ones. Otherwise they are computed
    /// between the forward and the backward pass of each micro-batch, or after a forward pass over all completions:
    /// if a weight depends on the values of the whole step, or if examples with weights are probably few. The bits
    /// are the same.
    pub(super) fn run(&self, trainer: &mut Trainer) -> Result<PassOutput, Error> {
        let mut pass = if self.is_on_policy && !self.loss.needs_entropy() {
            self.weights_first(trainer, None)
        } else if self.loss.needs_whole_step() || self.drops_examples() {
            let values = self.values(trainer)?;
            self.weights_first(trainer, Some(values))
        } else {
            self.weights_during(trainer)
        }?;
        if let (Some(values), Some(part), true) =
            (&mut pass.values, pass.parts.first(), faults::on(Fault::ValuesChangeAfterWeights))
        {
            values[part.start].logp[0] += 1e-6;
        }
        Ok(pass)
    }

    /// Whether clipping often makes all weights of an example zero: an example is one completion, whose tokens are
    /// clipped together. A forward pass then costs less than the backward pass of these examples.
    fn drops_examples(&self) -> bool {
        let PolicyLoss { level, loss_type, .. } = self.loss;
        let is_clipped = *level == ImportanceSamplingLevel::Sequence && loss_type.is_clipped();
        let only_term = !(self.loss.needs_reference() || self.loss.needs_entropy());
        is_clipped && only_term && self.examples.shared <= 1
    }

    /// Weights from `values`, then the gradient.
    fn weights_first(
        &self,
        trainer: &mut Trainer,
        values: Option<Vec<TokenValues>>,
    ) -> Result<PassOutput, Error> {
        let rows = StepRows::new(self.completions);
        let output = self.loss.evaluate_part(&rows.all(values.as_deref()), self.loss_tokens)?;
        let factors = |i: usize, t: usize| (output.weights[i][t] as f32, output.bonus[i][t] as f32);
        let is_weighted = |i: usize| (0..rows.masks[i].len()).any(|t| factors(i, t) != (0.0, 0.0));
        let Parts { trained: parts, numbers, count, .. } = self.parts(is_weighted);
        let example = |part: &Range<usize>| {
            let target = |i, t| factors(part.start + i, t);
            self.examples.example(&self.completions[part.clone()], target)
        };
        let examples: Vec<TrainingExample> = parts.iter().map(example).collect();
        let gradient = (!examples.is_empty())
            .then(|| {
                let step = StepExamples::some(&examples, numbers, count);
                trainer.gradient_of(&step, self.processing, self.examples.per_pass())
            })
            .transpose()?;
        Ok(PassOutput { output, parts, values, gradient })
    }

    /// Weights of each micro-batch from the values of its forward pass.
    fn weights_during(&self, trainer: &mut Trainer) -> Result<PassOutput, Error> {
        let rows = StepRows::new(self.completions);
        let sizes = self.loss.sizes(&rows.all(None), self.loss_tokens);
        let Parts { trained: parts, numbers, left_out, count } =
            self.parts(|i| !self.loss.ignores(&rows.row(i, None)));
        let (mut values, comm) = (vec![TokenValues::default(); self.completions.len()], trainer.processes());
        for (i, found) in
            self.examples.values(&trainer.model, self.completions, &left_out, self.processing, &*comm)?
        {
            self.check(i, &found)?;
            values[i] = found;
        }
        let mut own = Vec::new();
        let mut set = |pass: Range<usize>, found: &[Option<LogProb>], targets: &mut [Option<Target>]| {
            let mut found = found.iter().copied();
            let part: Vec<usize> = parts[pass].iter().cloned().flatten().collect();
            own.extend(&part);
            for &i in &part {
                values[i] = self.examples.values_of(&self.completions[i], &mut found);
                self.check(i, &values[i])?;
            }
            let stale = faults::on(Fault::WeightsFromStaleValues);
            let current = |&i: &usize| {
                let row = rows.row(i, Some(&values[i]));
                PolicyRow { logp: if stale { row.old } else { row.logp }, ..row }
            };
            let current: Vec<PolicyRow<'_>> = part.iter().map(current).collect();
            let of_step = |at: usize| part[at];
            let found = self.loss.weights(&current, &sizes).map_err(|error| error.map_completion(of_step))?;
            let mut targets = targets.iter_mut();
            for ((&i, weights), bonus) in part.iter().zip(&found.weights).zip(&found.bonus) {
                let factors = |t: usize| (weights[t] as f32, bonus[t] as f32);
                self.examples.set_weights(&self.completions[i], &mut targets, factors);
            }
            Ok::<(), Error>(())
        };
        let example =
            |part: &Range<usize>| self.examples.example(&self.completions[part.clone()], |_, _| (0.0, 0.0));
        let examples: Vec<TrainingExample> = parts.iter().map(example).collect();
        let gradient = (!examples.is_empty())
            .then(|| {
                let step = StepExamples::some(&examples, numbers, count);
                trainer.gradient_with(&step, self.processing, self.examples.per_pass(), &mut set)
            })
            .transpose()?;
        let own = own.into_iter().map(|i| (i, std::mem::take(&mut values[i]))).collect();
        for (i, found) in exchange::values(&*comm, own)? {
            values[i] = found;
        }
        let output = self.loss.evaluate_part(&rows.all(Some(&values)), self.loss_tokens)?;
        Ok(PassOutput { output, parts, values: Some(values), gradient })
    }

    /// The values of all completions under the current weights.
    fn values(&self, trainer: &Trainer) -> Result<Vec<TokenValues>, Error> {
        let parts: Vec<Range<usize>> = self.examples.parts(self.completions).collect();
        let comm = trainer.processes();
        let values =
            self.examples.values(&trainer.model, self.completions, &parts, self.processing, &*comm)?;
        let checked = |(i, found)| self.check(i, &found).map(|()| found);
        values.into_iter().map(checked).collect()
    }

    /// Compares the values of a completion with the sampler's, if they must be equal.
    fn check(&self, completion: usize, found: &TokenValues) -> Result<(), Error> {
        if self.is_on_policy { check(&self.completions[completion], &found.logp) } else { Ok(()) }
    }

    /// The examples with a completion that `is_weighted`, and the others.
    fn parts(&self, is_weighted: impl Fn(usize) -> bool) -> Parts {
        let all = faults::on(Fault::ZeroWeightsTrained);
        let (mut trained, mut numbers, mut left_out, mut count) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (number, part) in self.examples.parts(self.completions).enumerate() {
            count = number + 1;
            match all || part.clone().any(&is_weighted) {
                true => {
                    trained.push(part);
                    numbers.push(number);
                }
                false => left_out.push(part),
            }
        }
        if faults::on(Fault::SkippedExamplesNotCounted) {
            (count, numbers) = (trained.len(), (0..trained.len()).collect());
        }
        Parts { trained, numbers, left_out, count }
    }
}

/// The examples of a step, each as the range of its completions.
struct Parts {
    /// Those of the backward pass.
    trained: Vec<Range<usize>>,
    /// The number of each of these in the step.
    numbers: Vec<usize>,
    /// The others.
    left_out: Vec<Range<usize>>,
    /// The number of all.
    count: usize,
}

/// The completions of a step as rows of the policy loss.
struct StepRows<'a> {
    completions: &'a [Weighted<'a>],
    /// The sampler's log-probabilities.
    old: Vec<Vec<f64>>,
    masks: Vec<Vec<bool>>,
}

impl<'a> StepRows<'a> {
    fn new(completions: &'a [Weighted<'a>]) -> StepRows<'a> {
        let widen = |c: &Weighted<'_>| c.sample.logprobs.iter().map(|&x| f64::from(x)).collect();
        StepRows {
            completions,
            old: completions.iter().map(widen).collect(),
            masks: completions.iter().map(Weighted::mask).collect(),
        }
    }

    /// The row of completion `i` with these current values. `None`: the sampler's.
    fn row<'s>(&'s self, i: usize, values: Option<&'s TokenValues>) -> PolicyRow<'s> {
        PolicyRow {
            logp: values.map_or(&self.old[i], |values| &values.logp),
            old: &self.old[i],
            reference: self.completions[i].reference.as_deref(),
            sampler: None,
            entropy: values.map(|values| &values.entropy[..]),
            mask: &self.masks[i],
            advantage: self.completions[i].advantage,
            truncated: self.completions[i].sample.truncated(),
        }
    }

    /// The rows of all completions.
    fn all<'s>(&'s self, values: Option<&'s [TokenValues]>) -> Vec<PolicyRow<'s>> {
        (0..self.completions.len()).map(|i| self.row(i, values.map(|values| &values[i]))).collect()
    }
}
