//! The training loop's state: a model, its optimizer and where it stands.
use crate::error::{Error, Result};
use crate::grads::Grads;
use crate::model::Model;
use crate::objective::{self, Sample};
use crate::optim::{AdamW, OptimConfig};
use crate::schedule::Schedule;
use xtrain_tensor::Tensor;

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
    pub fn new(model: Model, optim: OptimConfig, schedule: Schedule) -> Trainer {
        let optimizer = AdamW::new(optim, &model.params);
        Trainer { model, optimizer, schedule, step: 0, tokens: 0 }
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

    /// One update from `samples`, whose targets get weight 1 / targets of the step, taken in
    /// micro-batches of at most `micro` samples. The split does not change a bit.
    ///
    /// # Errors
    /// [`Error::NotFinite`] when the loss or a gradient is not finite: the weights are unchanged; or when
    /// the update made a weight infinite: the step does not count, and nothing of it may be saved;
    /// [`Error::Tensor`] for an id outside the vocabulary.
    pub fn step(&mut self, mut samples: Vec<Sample>, micro: usize) -> Result<StepReport> {
        let targets = weigh(&mut samples);
        let (mut loss, mut grads) = (0f32, Grads::zeros(&self.model.params));
        for part in samples.chunks(micro.max(1)) {
            objective::backward(&self.model, part, 1.0, (&mut loss, &mut grads))?;
        }
        let step = self.step + 1;
        if !loss.is_finite() {
            return Err(Error::NotFinite { step, what: "the loss".into() });
        }
        let grads = grads.finish()?;
        let learning_rate = self.schedule.rate(self.step);
        let grad_norm = self.optimizer.step(&mut self.model.params, &grads, learning_rate)?;
        if !grad_norm.is_finite() {
            let named = self.model.params.iter().zip(&grads).find(|(_, g)| !finite(g));
            let what = named
                .map_or("the norm of the gradient".into(), |(p, _)| format!("the gradient of {}", p.name()));
            return Err(Error::NotFinite { step, what });
        }
        if let Some(p) = self.model.params.iter().find(|p| !finite(p.value())) {
            return Err(Error::NotFinite { step, what: format!("the weight {}", p.name()) });
        }
        self.step = step;
        self.tokens += targets as u64;
        Ok(StepReport { step, loss, grad_norm, learning_rate, tokens: self.tokens })
    }
}

/// Whether all values of an f32 tensor are finite; block by block, each without a branch.
fn finite(x: &Tensor) -> bool {
    let block = |x: &[f32]| x.iter().fold(true, |all, x| all & x.is_finite());
    x.data::<f32>().is_ok_and(|x| x.chunks(4096).all(block))
}

/// Gives every target of a step the weight 1 / their number; returns the number.
pub fn weigh(samples: &mut [Sample]) -> usize {
    let n: usize = samples.iter().map(|s| s.targets.iter().flatten().count()).sum();
    let weight = (1.0 / n.max(1) as f64) as f32;
    samples.iter_mut().for_each(|s| s.targets.iter_mut().flatten().for_each(|t| t.weight = weight));
    n
}
