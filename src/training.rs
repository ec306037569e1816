//! One run of training: batches in, updates, evaluations and checkpoints out.
use std::path::PathBuf;

use serde::Serialize;

use crate::config::RunConfig;
use crate::evaluate::{self, Evaluation, evaluate};
use crate::model::checkpoint::{CheckpointDir, CheckpointError};
use crate::model::data::DataError;
use crate::model::store::{self, RunState, StoreError};
use crate::model::{self, Model, StepReport, Trainer, TrainingExample};
use crate::run::{self, JsonLines};

pub use made::{begin, compute, keep, model_config, optim_config, schedule};
pub use reading::{Cut, Reading, Source, split};

mod made;
mod reading;

/// What a run does next, for whoever has a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The batch of a step and its update.
    Step,
    /// The loss of what is held out.
    Evaluate,
    /// What is written and shown of the step.
    Log,
    /// Samples of text.
    Sample,
    /// A checkpoint.
    Save,
    /// Nothing more.
    End,
}

/// Who is told what a run does, and may stop it.
pub trait Observer {
    /// The run enters a phase, and left the one before.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn enter(&mut self, _phase: Phase) -> Result<(), Error> {
        Ok(())
    }
    /// A step is done; `val` where it was evaluated. The step's line is in `metrics.jsonl`.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn step(&mut self, report: &StepReport, val: Option<&Evaluation>) -> Result<(), Error>;
    /// A checkpoint is durable.
    fn saved(&mut self, path: PathBuf, not_pruned: Option<CheckpointError>);
    /// Samples are due: called every `train.sample_every` steps.
    fn sample(&mut self, model: &Model, step: u64);
    /// Whether the run should save and stop.
    fn stop(&mut self) -> bool;
}

/// Why a run ended early.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The tokens.
    Data(DataError),
    /// The model, or a loss that is not finite.
    Model(model::Error),
    /// A checkpoint.
    Store(StoreError),
    /// The logs of the run.
    Run(run::Error),
    /// An evaluation.
    Evaluate(evaluate::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Data(e) => e.fmt(f),
            Error::Model(e) => e.fmt(f),
            Error::Store(e) => e.fmt(f),
            Error::Run(e) => e.fmt(f),
            Error::Evaluate(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

macro_rules! from {
    ($($variant:ident($t:ty)),*) => {$(
        impl From<$t> for Error {
            fn from(e: $t) -> Error {
                Error::$variant(e)
            }
        }
    )*};
}
from!(Data(DataError), Model(model::Error), Store(StoreError), Run(run::Error), Evaluate(evaluate::Error));

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All steps are done.
    Done,
    /// The observer asked for it; the last step is saved.
    Stopped,
}

/// A line of `metrics.jsonl`: a pure function of configuration, seed and step.
#[derive(Serialize)]
struct Line {
    step: u64,
    loss: f32,
    grad_norm: f32,
    learning_rate: f64,
    num_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    val_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    val_perplexity: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    val_bits_per_byte: Option<f64>,
}

/// A run that can go on.
pub struct Training<'a> {
    /// The resolved configuration.
    pub config: &'a RunConfig,
    /// What it trains on.
    pub source: &'a Source,
    /// In what windows.
    pub reading: &'a Reading,
    /// Where checkpoints go.
    pub checkpoints: &'a CheckpointDir,
    /// `metrics.jsonl`.
    pub metrics: &'a mut JsonLines,
    /// The model and its optimizer.
    pub trainer: &'a mut Trainer,
    /// The lowest validation loss so far.
    pub standing: RunState,
}

impl Training<'_> {
    /// Trains to the last step, or until the observer stops it. The weights after a step are a
    /// function of the configuration and the tokens alone: not of interruptions, threads or
    /// micro-batches.
    ///
    /// # Errors
    /// [`Error`]; the last good checkpoint stays.
    pub fn run(&mut self, observer: &mut dyn Observer) -> Result<End, Error> {
        let end = self.steps(observer);
        let told = observer.enter(Phase::End);
        end.and_then(|end| told.map(|()| end))
    }

    fn steps(&mut self, observer: &mut dyn Observer) -> Result<End, Error> {
        let train = &self.config.train;
        let last = train.steps as u64;
        if self.trainer.step_number() == 0 {
            self.save(observer)?;
        }
        loop {
            let at = self.trainer.step_number();
            if at >= last {
                return Ok(End::Done);
            }
            observer.enter(Phase::Step)?;
            let excerpts = self.reading.batch(&self.source.tokens, at, train.batch as u32)?;
            let samples = excerpts.into_iter().map(TrainingExample::from).collect();
            let report = self.trainer.step(samples, train.micro_batch)?;
            let due =
                |every: usize| every > 0 && report.step.is_multiple_of(every as u64) || report.step == last;
            let mut val = None;
            if due(train.eval_every) {
                observer.enter(Phase::Evaluate)?;
                val = self.evaluate(report.step)?;
            }
            observer.enter(Phase::Log)?;
            self.log(&report, val.as_ref())?;
            observer.step(&report, val.as_ref())?;
            if due(train.sample_every) && train.sample_every > 0 {
                observer.enter(Phase::Sample)?;
                observer.sample(&self.trainer.model, report.step);
            }
            let stop = report.step < last && observer.stop();
            if stop || due(train.save_every) {
                self.save(observer)?;
            }
            if stop {
                return Ok(End::Stopped);
            }
        }
    }

    fn evaluate(&mut self, step: u64) -> Result<Option<Evaluation>, Error> {
        let Source { tokens, tokenizer, .. } = self.source;
        if self.reading.held_out().is_empty() {
            return Ok(None);
        }
        let val = evaluate(&self.trainer.model, tokens, self.reading.held_out(), tokenizer)?;
        if self.standing.best.is_none_or(|(best, _)| val.loss < best) {
            self.standing.best = Some((val.loss, step));
        }
        Ok(Some(val))
    }

    fn log(&mut self, report: &StepReport, val: Option<&Evaluation>) -> Result<(), Error> {
        Ok(self.metrics.write(&Line {
            step: report.step,
            loss: report.loss,
            grad_norm: report.grad_norm,
            learning_rate: report.learning_rate,
            num_tokens: report.target_tokens,
            val_loss: val.map(|v| v.loss),
            val_perplexity: val.map(Evaluation::perplexity),
            val_bits_per_byte: val.map(Evaluation::bits_per_byte),
        })?)
    }

    fn save(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        observer.enter(Phase::Save)?;
        self.metrics.sync()?;
        let saved = store::save(self.checkpoints, self.trainer, &self.source.tokenizer, self.standing)?;
        observer.saved(saved.path, saved.not_pruned);
        Ok(())
    }
}
