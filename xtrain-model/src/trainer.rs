//! The training loop's state: a model, its optimizer and where it stands.
use xtrain_tensor::Tensor;
use xtrain_tensor::ops::{self, Updated};

use crate::error::{Error, Result};
use crate::grads::Grads;
use crate::model::Model;
use crate::objective::{self, LogitsProcessing, TrainingExample};
use crate::optim::{AdamW, OptimConfig};
use crate::param::Param;
use crate::params::Params;
use crate::recompute;
use crate::schedule::Schedule;

/// What a pass keeps for its backward. No bit depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ActivationCheckpointing {
    /// Every activation.
    #[default]
    Off,
    /// The input of each layer, whose forward is run again.
    PerLayer,
}

/// A model being trained. Its state after a step is a function of the initial weights and of the
/// samples of each step alone: not of micro-batches, threads or interruptions.
#[derive(Debug)]
pub struct Trainer {
    /// The model.
    pub model: Model,
    /// The optimizer and its moments.
    pub optimizer: AdamW,
    /// The learning rates.
    pub schedule: Schedule,
    /// What a pass keeps for its backward.
    pub keep: ActivationCheckpointing,
    step: u64,
    tokens: u64,
}

/// What one step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Its number, from 1.
    pub step: u64,
    /// The loss, before the update.
    pub loss: f32,
    /// The norm of the gradient, before clipping.
    pub grad_norm: f32,
    /// The learning rate.
    pub learning_rate: f64,
    /// Targets learnt since the start of the run.
    pub tokens: u64,
}

impl Trainer {
    /// A trainer at step 0.
    ///
    /// # Errors
    /// When the device has no memory for the moments.
    pub fn new(model: Model, optim: OptimConfig, schedule: Schedule) -> Result<Trainer> {
        let optimizer = AdamW::new(optim, &model.params)?;
        Ok(Trainer { model, optimizer, schedule, keep: ActivationCheckpointing::Off, step: 0, tokens: 0 })
    }

    /// Steps taken.
    pub fn step_number(&self) -> u64 {
        self.step
    }

    /// Targets learnt.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Goes on from a checkpoint: weights and moments have been put in place by the caller.
    pub fn resume_at(&mut self, step: u64, tokens: u64) {
        (self.step, self.tokens) = (step, tokens);
    }

    /// Adds the loss of one micro-batch and its gradient, keeping what [`Trainer::keep`] says.
    ///
    /// # Errors
    /// As [`objective::backward`].
    pub fn backward(&self, part: &[TrainingExample], into: (&mut f32, &mut Grads)) -> Result<()> {
        let how = LogitsProcessing::default();
        match self.keep {
            ActivationCheckpointing::Off => objective::backward(&self.model, part, how, into)?,
            ActivationCheckpointing::PerLayer => recompute::backward(&self.model, part, how, into)?,
        };
        Ok(())
    }

    /// One update from `samples`, whose targets get weight 1 / targets of the step, taken in
    /// micro-batches of at most `micro` samples. The split does not change a bit.
    ///
    /// # Errors
    /// [`Error::NotFinite`] when the loss or a gradient is not finite: the weights are unchanged; or when
    /// the update made a weight infinite: the step does not count, and nothing of it may be saved;
    /// [`Error::Tensor`] for an id outside the vocabulary.
    pub fn step(&mut self, mut samples: Vec<TrainingExample>, micro: usize) -> Result<StepReport> {
        let targets = normalize_loss_weights(&mut samples);
        self.model.params.pack()?;
        let (mut loss, mut grads) = (0f32, Grads::zeros(&self.model.params)?);
        for part in samples.chunks(micro.max(1)) {
            self.backward(part, (&mut loss, &mut grads))?;
        }
        let step = self.step + 1;
        if !loss.is_finite() {
            return Err(Error::NotFinite { step, what: "the loss".into() });
        }
        let grads = grads.finish()?;
        let learning_rate = self.schedule.rate(self.step);
        let Updated { norm, finite } = self.optimizer.step(&mut self.model.params, &grads, learning_rate)?;
        if !norm.is_finite() {
            let what = match named(&self.model.params, grads.iter())? {
                Some(name) => format!("the gradient of {name}"),
                None => "the norm of the gradient".into(),
            };
            return Err(Error::NotFinite { step, what });
        }
        if !finite {
            let values = self.model.params.iter().map(Param::value).collect::<Result<Vec<_>>>()?;
            let what = match named(&self.model.params, values.into_iter())? {
                Some(name) => format!("the weight {name}"),
                None => "a weight".into(),
            };
            return Err(Error::NotFinite { step, what });
        }
        self.step = step;
        self.tokens += targets as u64;
        Ok(StepReport { step, loss, grad_norm: norm, learning_rate, tokens: self.tokens })
    }
}

/// The first parameter whose tensor, in walk order, holds a NaN or an infinity.
fn named<'a>(params: &Params, tensors: impl Iterator<Item = &'a Tensor>) -> Result<Option<String>> {
    let first = ops::first_non_finite(&tensors.collect::<Vec<_>>())?;
    Ok(first.and_then(|at| params.iter().nth(at)).map(|p| p.name().to_string()))
}

/// Gives every target of a step the weight 1 / their number; returns the number.
pub fn normalize_loss_weights(samples: &mut [TrainingExample]) -> usize {
    let n: usize = samples.iter().map(|s| s.targets.iter().flatten().count()).sum();
    let weight = (1.0 / n.max(1) as f64) as f32;
    samples.iter_mut().for_each(|s| s.targets.iter_mut().flatten().for_each(|t| t.weight = weight));
    n
}
