//! The trainer: a model, its optimizer and the training step.
use std::ops::Range;

use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, LogProb, Target, Updated};

use crate::batch::SetTargets;
use crate::error::{Error, Result};
use crate::example::{LogitsProcessing, TrainingExample};
use crate::grads::Grads;
use crate::model::Model;
use crate::objective;
use crate::optim::{AdamW, OptimConfig};
use crate::param::Param;
use crate::params::Params;
use crate::recompute;
use crate::schedule::Schedule;

/// Which activations a forward pass keeps for the backward pass. The results are bit-identical.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ActivationCheckpointing {
    /// Keep every activation.
    #[default]
    Off,
    /// Keep only the input of each layer and recompute the layer's forward in the backward pass.
    PerLayer,
}

/// A model being trained. Its state after a step depends only on the initial weights and on the training examples of
/// each step. It does not depend on micro-batches, threads or interruptions.
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
    step: u64,
    target_tokens: u64,
}

/// Sets the loss weights and entropy bonuses of a micro-batch between its forward and its backward pass. Arguments:
/// the indices of its examples in the step; the values of its targets; the targets, whose ids stay.
pub type SetLossWeights<'a, E> =
    dyn FnMut(Range<usize>, &[Option<LogProb>], &mut [Option<Target>]) -> Result<(), E> + 'a;

/// The result of one optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepReport {
    /// The number of the step, from 1.
    pub step: u64,
    /// The loss before the update.
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
        Ok(Trainer { model, optimizer, schedule, checkpointing, step: 0, target_tokens: 0 })
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
    /// As [`objective::backward`].
    pub fn backward(
        &self,
        micro_batch: &[TrainingExample],
        processing: LogitsProcessing,
        loss: &mut f32,
        grads: &mut Grads,
    ) -> Result<Vec<Option<LogProb>>> {
        self.backward_with::<Error>(micro_batch, processing, None, loss, grads)
    }

    fn backward_with<E: From<Error>>(
        &self,
        micro_batch: &[TrainingExample],
        processing: LogitsProcessing,
        set: Option<&mut SetTargets<'_, E>>,
        loss: &mut f32,
        grads: &mut Grads,
    ) -> Result<Vec<Option<LogProb>>, E> {
        match self.checkpointing {
            ActivationCheckpointing::Off => {
                objective::backward_with(&self.model, micro_batch, processing, set, loss, grads)
            }
            ActivationCheckpointing::PerLayer => {
                recompute::backward_with(&self.model, micro_batch, processing, set, loss, grads)
            }
        }
    }

    /// The gradient of a step whose targets have their final loss weights. It is accumulated over micro-batches of
    /// at most `micro_batch` examples; the split does not change a bit. Changes nothing but packed copies of the
    /// weights.
    ///
    /// # Errors
    /// As [`objective::backward`].
    pub fn gradient(
        &mut self,
        examples: &[TrainingExample],
        processing: LogitsProcessing,
        micro_batch: usize,
    ) -> Result<StepGradient> {
        self.accumulate::<Error>(examples, processing, micro_batch, None)
    }

    /// [`Trainer::gradient`] with loss weights that depend on the values of this pass. After the forward pass of each
    /// micro-batch and before its backward pass, `set` gives the targets their weights and bonuses. The gradient has
    /// the bits of [`Trainer::gradient`] with the same weights; it takes one more product with the head.
    ///
    /// # Errors
    /// As [`Trainer::gradient`]; the errors of `set`.
    pub fn gradient_with<E: From<Error>>(
        &mut self,
        examples: &[TrainingExample],
        processing: LogitsProcessing,
        micro_batch: usize,
        set: &mut SetLossWeights<'_, E>,
    ) -> Result<StepGradient, E> {
        self.accumulate(examples, processing, micro_batch, Some(set))
    }

    fn accumulate<E: From<Error>>(
        &mut self,
        examples: &[TrainingExample],
        processing: LogitsProcessing,
        micro_batch: usize,
        mut set: Option<&mut SetLossWeights<'_, E>>,
    ) -> Result<StepGradient, E> {
        self.model.params.pack()?;
        let (mut loss, mut grads) = (0f32, Grads::zeros(&self.model.params)?);
        let mut values = Vec::with_capacity(examples.iter().map(TrainingExample::target_entries).sum());
        let mut first = 0;
        for part in examples.chunks(micro_batch.max(1)) {
            let range = first..first + part.len();
            first = range.end;
            let found = match &mut set {
                None => self.backward_with::<E>(part, processing, None, &mut loss, &mut grads),
                Some(set) => {
                    let mut set = |values: &[Option<LogProb>], targets: &mut [Option<Target>]| {
                        set(range.clone(), values, targets)
                    };
                    self.backward_with(part, processing, Some(&mut set), &mut loss, &mut grads)
                }
            };
            values.extend(found?);
        }
        Ok(StepGradient { loss, grads, values })
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
        let grads = grads.finish()?;
        let learning_rate = self.schedule.rate(self.step);
        let Updated { norm, finite } = self.optimizer.step(&mut self.model.params, &grads, learning_rate)?;
        if !norm.is_finite() {
            let what = match non_finite_param(&self.model.params, grads.iter())? {
                Some(name) => format!("the gradient of {name}"),
                None => "the norm of the gradient".into(),
            };
            return Err(Error::NotFinite { step, what });
        }
        if !finite {
            let values = self.model.params.iter().map(Param::value).collect::<Result<Vec<_>>>()?;
            let what = match non_finite_param(&self.model.params, values.into_iter())? {
                Some(name) => format!("the weight {name}"),
                None => "a weight".into(),
            };
            return Err(Error::NotFinite { step, what });
        }
        self.step = step;
        self.target_tokens += tokens as u64;
        let target_tokens = self.target_tokens;
        Ok(StepReport { step, loss, grad_norm: norm, learning_rate, target_tokens })
    }

    /// One optimizer step on the mean of the losses of all targets: each has the loss weight 1 / (number of target
    /// tokens of the step). The examples have loss weights of 1, or already these; [`Trainer::step_weighted`] uses other
    /// ones. Gradients are accumulated over micro-batches of at most `micro_batch` examples; the split does not change a
    /// bit.
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
    /// The gradient of each use of a parameter.
    pub grads: Grads,
    /// The log-probability of each target, `None` for a missing one: those of each example, then those of its branches.
    pub values: Vec<Option<LogProb>>,
}

/// The name of the first parameter, in walk order, whose tensor contains a NaN or an infinity.
fn non_finite_param<'a>(
    params: &Params,
    tensors: impl Iterator<Item = &'a Tensor>,
) -> Result<Option<String>> {
    let first = ops::first_non_finite(&tensors.collect::<Vec<_>>())?;
    Ok(first.and_then(|at| params.iter().nth(at)).map(|p| p.name().to_string()))
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
