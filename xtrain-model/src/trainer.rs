//! The trainer: a model, its optimizer and the training step.
use std::ops::Range;
use std::sync::Arc;

use xtrain_comm::{Communicator, SingleProcess};
use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, LogProb, Target, Updated};

use crate::backward::{ActivationCheckpointing, Pass, Totals};
use crate::batch::SetTargets;
use crate::error::{Error, Result};
use crate::example::{LogitsProcessing, TrainingExample};
use crate::exchange::ExchangeTime;
use crate::grads::Grads;
use crate::model::Model;
use crate::optim::{AdamW, OptimConfig};
use crate::param::Param;
use crate::process_group::{ProcessGroup, ShardTotal};
use crate::processes::Processes;
use crate::schedule::Schedule;
use crate::step_examples::StepExamples;
use crate::step_sum::StepSum;

/// A model being trained. Its state after a step depends only on the initial weights and on the training examples of
/// each step, and on [`Trainer::shards`]. It does not depend on micro-batches, threads, processes or interruptions.
///
/// ```
/// use xtrain_model::{Config, Model, OptimConfig, Schedule, Trainer, TrainingExample};
/// use xtrain_tensor::{Device, Dtype};
///
/// let model = Model::init(&Config::tiny(), Dtype::F32, &Device::cpu(), 0)?;
/// let mut trainer = Trainer::new(model, OptimConfig::default(), Schedule::constant(1e-3))?;
/// let examples = vec![TrainingExample::window(&[1, 2, 3, 4], 1.0); 8];
/// let report = trainer.step(examples, 4)?;
/// assert_eq!((report.step, report.target_tokens), (1, 24));
/// # Ok::<(), xtrain_model::Error>(())
/// ```
#[derive(Debug)]
pub struct Trainer {
    /// The model.
    pub model: Model,
    /// The optimizer and its moments.
    pub optimizer: AdamW,
    /// The learning rates.
    pub schedule: Schedule,
    /// Which activations a forward pass keeps for the backward pass.
    pub checkpointing: ActivationCheckpointing,
    /// The number of shards of a step, at least 1. The gradients of each are summed separately; see
    /// [`shard_samples`](crate::shard_samples). Steps of 1 shard and of more have different bits.
    pub shards: usize,
    /// `None`: this process alone trains the model.
    group: Option<ProcessGroup>,
    step: u64,
    target_tokens: u64,
}

/// Sets the loss weights and entropy bonuses of a micro-batch between its forward and its backward pass. Arguments:
/// the indices of its examples; the values of its targets; the targets, whose ids stay.
pub type SetLossWeights<'a, E> =
    dyn FnMut(Range<usize>, &[Option<LogProb>], &mut [Option<Target>]) -> Result<(), E> + 'a;

/// The result of one optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepReport {
    /// The number of the step, from 1.
    pub step: u64,
    /// The loss before the update; 0 without a target.
    pub loss: f32,
    /// The norm of the gradient before clipping.
    pub grad_norm: f32,
    /// The learning rate.
    pub learning_rate: f64,
    /// Number of target tokens since the start of the run.
    pub target_tokens: u64,
}

impl Trainer {
    /// A trainer at step 0.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn new(model: Model, optim: OptimConfig, schedule: Schedule) -> Result<Trainer> {
        let (optimizer, checkpointing) = (AdamW::new(optim, &model.params)?, ActivationCheckpointing::Off);
        let (shards, group) = (1, None);
        Ok(Trainer { model, optimizer, schedule, checkpointing, shards, group, step: 0, target_tokens: 0 })
    }

    /// Trains together with other processes, which have the same state: each computes [`Trainer::shards`] / R shards of
    /// a step and updates a slice of the parameters. From now on the following are collective: [`Trainer::gradient`],
    /// [`Trainer::apply`] and the functions that call them, [`Trainer::whole_gradient`], [`Trainer::whole_values`] and
    /// [`Trainer::leave`].
    ///
    /// After an error of one of them in one process, the others may wait for it: it must end and drop its communicator,
    /// and not call another of them.
    ///
    /// # Errors
    /// [`Error::Processes`] if the number of processes does not divide [`Trainer::shards`], or if
    /// [`Processes::gpus`] connects another device than that of the model.
    pub fn join(&mut self, processes: &Processes) -> Result<()> {
        self.leave()?;
        if processes.comm.size() == 1 {
            return Ok(());
        }
        let group = ProcessGroup::new(processes, self.shards, &self.model.params)?;
        let slice = |moments: &[Tensor]| group.slice(&moments.iter().collect::<Vec<_>>());
        // assigned together: after an error, the trainer has all moments
        (self.optimizer.m, self.optimizer.v) = (slice(&self.optimizer.m)?, slice(&self.optimizer.v)?);
        self.group = Some(group);
        Ok(())
    }

    /// Ends [`Trainer::join`]: this process has the moments of all parameters again, to save them. The processes may
    /// join again.
    ///
    /// # Errors
    /// A process has ended; the device is out of memory. The trainer has then not left.
    pub fn leave(&mut self) -> Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        let whole = |moments: &[Tensor]| {
            if faults::on(Fault::MomentsOfOneProcessSaved) && group.comm().rank() > 0 {
                let zeros = |m: &Tensor| Tensor::zeros(m.device(), m.shape(), m.dtype());
                let zeros = moments.iter().map(zeros).collect::<Result<Vec<_>, _>>()?;
                return group.gather(&zeros, &self.model.params);
            }
            group.gather(moments, &self.model.params)
        };
        self.optimizer.m = whole(&self.optimizer.m)?;
        match whole(&self.optimizer.v) {
            Ok(v) => self.optimizer.v = v,
            // the state of a trainer that has joined
            Err(error) => {
                self.optimizer.m = group.slice(&self.optimizer.m.iter().collect::<Vec<_>>())?;
                return Err(error);
            }
        }
        self.group = None;
        Ok(())
    }

    /// The processes that train together.
    pub fn processes(&self) -> Arc<dyn Communicator> {
        self.group.as_ref().map_or_else(|| Arc::new(SingleProcess) as _, |group| Arc::clone(group.comm()))
    }

    /// Number of completed steps.
    pub fn step_number(&self) -> u64 {
        self.step
    }

    /// Number of target tokens since the start of the run.
    pub fn target_tokens(&self) -> u64 {
        self.target_tokens
    }

    /// Sets the counters of a checkpoint. The caller has restored weights and moments.
    pub fn resume_at(&mut self, step: u64, target_tokens: u64) {
        (self.step, self.target_tokens) = (step, target_tokens);
    }

    /// Adds the loss of one micro-batch to `loss` and its gradient to `grads`, with [`Trainer::checkpointing`]. Returns
    /// the log-probability of each target.
    ///
    /// # Errors
    /// As [`objective::backward`](crate::objective::backward).
    pub fn backward(
        &self,
        micro_batch: &[TrainingExample],
        processing: LogitsProcessing,
        loss: &mut f32,
        grads: &mut Grads,
    ) -> Result<Vec<Option<LogProb>>> {
        let totals = Totals { loss, grads };
        self.pass(processing).run::<Error>(micro_batch, None, totals, &mut |_, _| Ok(()))
    }

    fn pass(&self, processing: LogitsProcessing) -> Pass<'_> {
        Pass { model: &self.model, processing, checkpointing: self.checkpointing }
    }

    /// The gradient of a step whose targets have their final loss weights. It is accumulated over micro-batches of
    /// at most `micro_batch` examples; the split does not change a bit. Changes nothing but packed copies of the
    /// weights.
    ///
    /// # Errors
    /// As [`objective::backward`](crate::objective::backward); [`Error::NotFinite`] for a logit that is not finite.
    pub fn gradient(
        &mut self,
        examples: &[TrainingExample],
        processing: LogitsProcessing,
        micro_batch: usize,
    ) -> Result<StepGradient> {
        self.gradient_of(&StepExamples::all(examples), processing, micro_batch)
    }

    /// [`Trainer::gradient`] of a step of which some samples have a gradient of zero.
    ///
    /// # Errors
    /// As [`Trainer::gradient`].
    pub fn gradient_of(
        &mut self,
        step: &StepExamples<'_>,
        processing: LogitsProcessing,
        micro_batch: usize,
    ) -> Result<StepGradient> {
        let gradient = self.accumulate::<Error>(step, processing, micro_batch, None);
        gradient.map_err(|error| error.at_step(self.step + 1))
    }

    /// [`Trainer::gradient_of`] with loss weights that depend on the values of this pass. After the forward pass of
    /// each micro-batch and before its backward pass, `set` gives the targets their weights and bonuses. The gradient
    /// has the bits of [`Trainer::gradient_of`] with the same weights; it takes one more product with the head.
    ///
    /// # Errors
    /// As [`Trainer::gradient`]; the errors of `set`.
    pub fn gradient_with<E: From<Error>>(
        &mut self,
        step: &StepExamples<'_>,
        processing: LogitsProcessing,
        micro_batch: usize,
        set: &mut SetLossWeights<'_, E>,
    ) -> Result<StepGradient, E> {
        self.accumulate(step, processing, micro_batch, Some(set))
    }

    fn accumulate<E: From<Error>>(
        &mut self,
        step: &StepExamples<'_>,
        processing: LogitsProcessing,
        micro_batch: usize,
        mut set: Option<&mut SetLossWeights<'_, E>>,
    ) -> Result<StepGradient, E> {
        self.require_shards_of_group()?;
        self.model.params.pack()?;
        let own = self.group.as_ref().map_or(0..self.shards, ProcessGroup::own_shards);
        let examples = step.examples();
        let mut values = Vec::with_capacity(examples.iter().map(TrainingExample::target_entries).sum());
        let mut sum = StepSum::new(self.group.as_ref())?;
        for shard in own {
            let (mut loss, mut grads) = (0f32, Grads::zeros(&self.model.params)?);
            let samples = step.of_shard(self.shards, shard);
            for first in samples.clone().step_by(micro_batch.max(1)) {
                let range = first..samples.end.min(first.saturating_add(micro_batch.max(1)));
                let totals = Totals { loss: &mut loss, grads: &mut grads };
                let is_last = range.end == samples.end;
                let mut on_part = |part, totals: &mut Totals<'_>| {
                    if is_last { sum.complete(shard, part, totals) } else { Ok(()) }
                };
                let mut set = set.as_mut().map(|set| {
                    |values: &[Option<LogProb>], targets: &mut [Option<Target>]| {
                        set(range.clone(), values, targets)
                    }
                });
                let set = set.as_mut().map(|set| set as &mut SetTargets<'_, E>);
                let examples = &examples[range.clone()];
                values.extend(self.pass(processing).run(examples, set, totals, &mut on_part)?);
            }
            sum.push(shard, ShardTotal { loss, grads: grads.finish()? })?;
        }
        let total = sum.finish()?;
        let none = || Error::Processes { want: "at least 1 shard".into(), got: "0".into() };
        let (ShardTotal { mut loss, grads }, exchange) = total.ok_or_else(none)?;
        if faults::on(Fault::LossOfShardsAveraged) {
            loss /= self.shards as f32;
        }
        Ok(StepGradient { loss, grads, values, exchange })
    }

    /// Whether this trainer has joined processes and not left them: then it holds parts of the optimizer state only.
    pub(crate) fn is_joined(&self) -> bool {
        self.group.is_some()
    }

    /// The shards were divided among the processes when they joined.
    fn require_shards_of_group(&self) -> Result<()> {
        match self.group.as_ref().map(ProcessGroup::shards) {
            Some(shards) if shards != self.shards => {
                let want = format!("{shards} shards, as when the processes joined");
                Err(Error::Processes { want, got: self.shards.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// The gradients of all parameters, in walk order. Collective after [`Trainer::join`].
    ///
    /// # Errors
    /// A process has ended; the device is out of memory.
    pub fn whole_gradient(&self, gradient: &StepGradient) -> Result<Vec<Tensor>> {
        match &self.group {
            None => Ok(gradient.grads.clone()),
            Some(group) => group.gather(&gradient.grads, &self.model.params),
        }
    }

    /// The log-probabilities of all targets of the step, as [`StepGradient::values`] of one process. Collective after
    /// [`Trainer::join`].
    ///
    /// # Errors
    /// A process has ended.
    pub fn whole_values(&self, gradient: &StepGradient) -> Result<Vec<Option<LogProb>>> {
        match &self.group {
            None => Ok(gradient.values.clone()),
            Some(group) => group.gather_values(&gradient.values),
        }
    }

    /// Updates the weights. `tokens` is added to [`Trainer::target_tokens`].
    ///
    /// # Errors
    /// [`Error::NotFinite`] if the loss or a gradient is not finite, with unchanged weights; or if the update made a
    /// weight infinite, in which case the step does not count and must not be saved.
    pub fn apply(&mut self, gradient: StepGradient, tokens: usize) -> Result<StepReport> {
        let StepGradient { loss, grads, .. } = gradient;
        let step = self.step + 1;
        if !loss.is_finite() {
            return Err(Error::NotFinite { step, what: "the loss".into() });
        }
        let learning_rate = self.schedule.rate(self.step);
        let (optimizer, params) = (&mut self.optimizer, &mut self.model.params);
        let Updated { norm, finite } = match &self.group {
            None => optimizer.step(params, &grads, learning_rate)?,
            Some(group) => group.step(optimizer, params, &grads, learning_rate)?,
        };
        if !norm.is_finite() {
            let first = match &self.group {
                None => ops::first_non_finite(&grads.iter().collect::<Vec<_>>())?,
                Some(group) => group.first_non_finite(&grads)?,
            };
            let what = match first.and_then(|at| self.parameter(at)) {
                Some(param) => format!("the gradient of {}", param.name()),
                None => "the norm of the gradient".into(),
            };
            return Err(Error::NotFinite { step, what });
        }
        if !finite {
            let values = self.model.params.iter().map(Param::value).collect::<Result<Vec<_>>>()?;
            let first = ops::first_non_finite(&values)?;
            let what = match first.and_then(|at| self.parameter(at)) {
                Some(param) => format!("the weight {}", param.name()),
                None => "a weight".into(),
            };
            return Err(Error::NotFinite { step, what });
        }
        self.step = step;
        self.target_tokens += tokens as u64;
        let target_tokens = self.target_tokens;
        Ok(StepReport { step, loss, grad_norm: norm, learning_rate, target_tokens })
    }

    /// The parameter with this walk index.
    fn parameter(&self, index: usize) -> Option<&Param> {
        let index = if faults::on(Fault::FirstParameterNamed) { 0 } else { index };
        self.model.params.iter().nth(index)
    }

    /// One optimizer step on the mean of the losses of all targets: each has the loss weight 1 / (number of target
    /// tokens of the step). The examples have loss weights of 1, or already these; [`Trainer::step_weighted`] uses
    /// other ones. Gradients are accumulated over micro-batches of at most `micro_batch` examples; the split does not
    /// change a bit.
    ///
    /// # Errors
    /// [`Error::LossWeight`] for another loss weight; as [`Trainer::gradient`] and [`Trainer::apply`].
    pub fn step(&mut self, mut examples: Vec<TrainingExample>, micro_batch: usize) -> Result<StepReport> {
        let given: Vec<f32> = examples.iter().flat_map(TrainingExample::targets).map(|t| t.weight).collect();
        let targets = normalize_loss_weights(&mut examples);
        let mean = examples.iter().flat_map(TrainingExample::targets).next().map_or(1.0, |t| t.weight);
        if let Some(got) = given.iter().find(|weight| **weight != 1.0 && **weight != mean) {
            return Err(Error::LossWeight { got: got.to_string() });
        }
        if faults::on(Fault::MeanOfMicroBatchMeans) {
            let parts = examples.len().div_ceil(micro_batch.max(1)) as f32;
            for part in examples.chunks_mut(micro_batch.max(1)) {
                normalize_loss_weights(part);
                part.iter_mut().flat_map(TrainingExample::targets_mut).for_each(|t| t.weight /= parts);
            }
        }
        let gradient = self.gradient(&examples, LogitsProcessing::default(), micro_batch)?;
        self.apply(gradient, targets)
    }

    /// One optimizer step on the sum of the losses of all targets, each times its loss weight: advantages, or 1 / n for
    /// a mean over n targets. Otherwise as [`Trainer::step`]: with the schedule, clipping and the step counter. A step
    /// whose loss weights are all zero applies momentum and weight decay; [`Trainer::skip_step`] applies nothing.
    ///
    /// # Errors
    /// As [`Trainer::gradient`] and [`Trainer::apply`].
    pub fn step_weighted(
        &mut self,
        mut examples: Vec<TrainingExample>,
        micro_batch: usize,
    ) -> Result<StepReport> {
        if faults::on(Fault::WeightedStepTakesMean) {
            normalize_loss_weights(&mut examples);
        }
        let targets = examples.iter().map(|example| example.targets().count()).sum();
        let gradient = self.gradient(&examples, LogitsProcessing::default(), micro_batch)?;
        self.apply(gradient, targets)
    }

    /// Counts a step whose loss weights are all zero. It changes neither the weights nor the optimizer.
    pub fn skip_step(&mut self, tokens: usize) -> StepReport {
        let learning_rate = self.schedule.rate(self.step);
        self.step += 1;
        let lost = faults::on(Fault::TokensOfSkippedStepLost);
        self.target_tokens += if lost { 0 } else { tokens as u64 };
        let target_tokens = self.target_tokens;
        StepReport { step: self.step, loss: 0.0, grad_norm: 0.0, learning_rate, target_tokens }
    }
}

/// The loss and the gradient of one step, before the update.
#[derive(Debug)]
pub struct StepGradient {
    /// The loss.
    pub loss: f32,
    /// The gradients of the parameters, in walk order. Of several processes, each has those of its slice:
    /// [`Trainer::whole_gradient`] returns all.
    pub grads: Vec<Tensor>,
    /// The log-probability of each target, `None` for a missing one: those of each example, then those of its branches.
    /// Of several processes, each has those of its shards: [`Trainer::whole_values`] returns all.
    pub values: Vec<Option<LogProb>>,
    /// The time of the exchange with other processes.
    pub exchange: ExchangeTime,
}

/// Sets the loss weight of every target of a step to 1 / (number of targets). Returns the number of targets.
pub fn normalize_loss_weights(examples: &mut [TrainingExample]) -> usize {
    let n: usize = examples.iter().map(|e| e.targets().count()).sum();
    let weight = (1.0 / n.max(1) as f64) as f32;
    for target in examples.iter_mut().flat_map(TrainingExample::targets_mut) {
        target.weight = weight;
    }
    n
}

#[cfg(test)]
mod tests;
