//! The training loop: batches, optimizer steps, evaluations and checkpoints.
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use crate::config::{self, RunConfig, TaskKind};
use crate::evaluate::{self, Evaluation, MAX_ROWS, evaluate};
use crate::model::chat::BUILT_IN;
use crate::model::checkpoint::{CheckpointDir, CheckpointError, SavedCheckpoint};
use crate::model::comm;
use crate::model::data::DataError;
use crate::model::export::ExportSource;
use crate::model::store::{self, RunState, StoreError};
use crate::model::tokenizer::Tokenizer;
use crate::model::{
    self, LogitsProcessing, Model, Processes, StepReport, Trainer, TrainingExample, normalize_loss_weights,
};
use crate::run::{self, JsonLines};
use crate::tensor::faults::{self, Fault};

pub use data_loader::{DataLoader, Source, WindowSpec, split};
pub use from_config::{activation_checkpointing, compute, model_config, new_trainer, optim_config, schedule};
pub(crate) use from_config::{decay, max_norm};
pub use lr_find::{LrRange, lr_losses, steepest_rate};

pub(crate) mod data_loader;
mod from_config;
mod group_norms;
mod lr_find;

/// The phase that a run enters, for timing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Loading the batch of a step, and the step.
    Step,
    /// Evaluating the validation split.
    Evaluate,
    /// Logging the step.
    Log,
    /// Generating text samples.
    Sample,
    /// Saving a checkpoint.
    Save,
    /// The run has ended.
    End,
}

/// Receives the events of a run, and may stop it.
pub trait Observer {
    /// The run enters a phase and leaves the previous one.
    ///
    /// # Errors
    /// An error ends the run.
    fn enter(&mut self, _phase: Phase) -> Result<(), Error> {
        Ok(())
    }
    /// A step is finished and its line is in `metrics.jsonl`. Its loss is NaN if it had no target. `val` is `None` if the
    /// step was not evaluated.
    ///
    /// # Errors
    /// An error ends the run.
    fn step(&mut self, report: &StepReport, val: Option<&Evaluation>) -> Result<(), Error>;
    /// The norms of each group of parameters at a step of `train.stats_every`; [`Observer::step`] of the step follows.
    fn norms(&mut self, _norms: &BTreeMap<String, f64>) {}
    /// A checkpoint was written durably. `not_pruned`: an error while deleting old checkpoints.
    fn saved(&mut self, path: PathBuf, not_pruned: Option<CheckpointError>);
    /// Called every `train.sample_every` steps to generate samples.
    fn sample(&mut self, model: &Model, step: u64);
    /// Returns whether the run should save and stop.
    fn stop(&mut self) -> bool;
}

/// An error that ends a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading the training data failed.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The step failed, or its loss is not finite.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// Saving a checkpoint failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Writing a log failed.
    #[error(transparent)]
    Run(#[from] run::Error),
    /// An evaluation failed.
    #[error(transparent)]
    Evaluate(#[from] evaluate::Error),
    /// Another process has ended.
    #[error(transparent)]
    Communication(#[from] comm::Error),
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All steps are finished.
    Done,
    /// `train.patience` evaluations had no lower validation loss; the last step is saved.
    Early,
    /// The observer stopped the run; the last step is saved.
    Stopped,
}

/// A line of `metrics.jsonl`, a pure function of configuration, seed and step.
#[derive(Serialize)]
struct Line<'a> {
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
    #[serde(flatten)]
    norms: &'a BTreeMap<String, f64>,
}

/// A resumable training run.
pub struct Training<'a> {
    /// The resolved configuration.
    pub config: &'a RunConfig,
    /// The training data.
    pub source: &'a Source,
    /// The windows of each step.
    pub loader: &'a DataLoader,
    /// The files that it writes. `None`: the first of several processes writes them.
    pub files: Option<RunFiles<'a>>,
    /// The model and its optimizer.
    pub trainer: &'a mut Trainer,
    /// Seed and lowest validation loss so far.
    pub state: RunState,
    /// The processes of the run.
    pub processes: Processes,
}

/// The files that a training run writes.
pub struct RunFiles<'a> {
    /// The directory of the checkpoints.
    pub checkpoints: &'a CheckpointDir,
    /// The directory of the weights with the lowest validation loss. `None`: they are not kept.
    pub best: Option<&'a CheckpointDir>,
    /// `metrics.jsonl`.
    pub metrics: &'a mut JsonLines,
}

impl Training<'_> {
    /// Trains until the last step, or until the observer stops the run. The weights after a step are a function of
    /// the configuration and the tokens only; they do not depend on interruptions, threads, processes or micro-batches.
    /// With several processes, each calls it with the same state; the observer of the first one decides when it stops.
    ///
    /// # Errors
    /// [`Error`]; the last checkpoint is kept.
    pub fn run(&mut self, observer: &mut dyn Observer) -> Result<End, Error> {
        self.trainer.shards = self.config.train.shards;
        self.trainer.join(&self.processes)?;
        let mut end = self.steps(observer);
        if end.is_ok() {
            end = self.trainer.leave().map_err(Error::from).and(end);
        }
        let ended = observer.enter(Phase::End);
        end.and_then(|end| ended.map(|()| end))
    }

    fn steps(&mut self, observer: &mut dyn Observer) -> Result<End, Error> {
        let train = &self.config.train;
        let last = train.steps as u64;
        let first = if faults::on(Fault::ResumeRestartsData) { self.trainer.step_number() } else { 0 };
        if self.trainer.step_number() == 0 {
            self.save(observer)?;
        }
        loop {
            let step = self.trainer.step_number();
            if step >= last {
                return Ok(End::Done);
            }
            if self.is_out_of_patience(step) {
                return Ok(End::Early);
            }
            observer.enter(Phase::Step)?;
            let windows = self.loader.batch(&self.source.tokens, step - first, train.batch as u32)?;
            let examples = windows.into_iter().map(TrainingExample::from).collect();
            let before = self.trainer.target_tokens();
            let (mut report, norms) = self.step(examples)?;
            if report.target_tokens == before {
                // a window of a stream can be without a target: JSON has no NaN, and gets null
                report.loss = f32::NAN;
            }
            let due =
                |every: usize| every > 0 && report.step.is_multiple_of(every as u64) || report.step == last;
            let mut val = None;
            if train.eval_every > 0 && due(train.eval_every) {
                observer.enter(Phase::Evaluate)?;
                val = self.evaluate(report.step)?;
                self.save_best(report.step, observer)?;
            }
            observer.enter(Phase::Log)?;
            self.log(&report, val.as_ref(), &norms)?;
            if !norms.is_empty() {
                observer.norms(&norms);
            }
            observer.step(&report, val.as_ref())?;
            if due(train.sample_every) && train.sample_every > 0 {
                observer.enter(Phase::Sample)?;
                observer.sample(&self.trainer.model, report.step);
            }
            let stop = self.agreed(report.step < last && observer.stop())?;
            if stop || self.is_out_of_patience(report.step) || due(train.save_every) {
                self.save(observer)?;
            }
            if stop {
                return Ok(End::Stopped);
            }
        }
    }

    /// The decision of the first process.
    fn agreed(&self, decision: bool) -> Result<bool, Error> {
        Ok(self.processes.comm.broadcast(0, &[u8::from(decision)])? == [1])
    }

    /// One optimizer step. Every `train.stats_every` steps also the norms of each group of parameters.
    fn step(
        &mut self,
        mut examples: Vec<TrainingExample>,
    ) -> Result<(StepReport, BTreeMap<String, f64>), Error> {
        let (every, micro_batch) = (self.config.train.stats_every as u64, self.config.train.micro_batch);
        if every == 0 || !(self.trainer.step_number() + 1).is_multiple_of(every) {
            return Ok((self.trainer.step(examples, micro_batch)?, BTreeMap::new()));
        }
        let targets = normalize_loss_weights(&mut examples);
        let gradient = self.trainer.gradient(&examples, LogitsProcessing::default(), micro_batch)?;
        let norms = group_norms::group_norms(self.trainer, &gradient)?;
        Ok((self.trainer.apply(gradient, targets)?, norms))
    }

    /// Whether the last `train.patience` evaluations up to `step` had no lower validation loss.
    fn is_out_of_patience(&self, step: u64) -> bool {
        let (patience, every) =
            (self.config.train.patience as u64, self.config.train.eval_every.max(1) as u64);
        let since = |(_, best): (f64, u64)| step / every - (best / every).min(step / every);
        patience > 0 && self.state.best.is_some_and(|best| since(best) >= patience)
    }

    /// Saves the weights of `step` as the best ones if its validation loss is the lowest so far. Until the next
    /// checkpoint of the run, those that its last checkpoint records are kept, too.
    fn save_best(&mut self, step: u64, observer: &mut dyn Observer) -> Result<(), Error> {
        let best = self.files.as_ref().and_then(|files| files.best);
        let Some(best) = best.filter(|_| self.state.best.is_some_and(|(_, best)| best == step)) else {
            return Ok(());
        };
        observer.enter(Phase::Save)?;
        let tokenizer = with_trained_template(self.config, &self.source.tokenizer);
        let source = ExportSource {
            model: &self.trainer.model,
            tokenizer: Some(&tokenizer),
            eos: tokenizer.eos_ids(),
        };
        let _ = store::save_model(best, &source, step)?;
        // A resume needs the oldest weights: the last checkpoint of the run records their step.
        let kept = match faults::on(Fault::RecordedBestRemoved) {
            true => best.retain_step(Some(step)),
            false => best.retain_oldest_and_newest(),
        };
        Ok(kept.map_err(StoreError::from)?)
    }

    fn evaluate(&mut self, step: u64) -> Result<Option<Evaluation>, Error> {
        let (tokens, tokenizer) = (self.source.validation_tokens(), &self.source.tokenizer);
        if self.loader.validation().is_empty() {
            return Ok(None);
        }
        let (model, windows) = (&self.trainer.model, self.loader.validation());
        // no more rows than a training pass, whose memory was checked
        let train = &self.config.train;
        let rows = train.micro_batch.min(train.batch.div_ceil(train.shards.max(1))) * train.context;
        let rows = if faults::on(Fault::EvaluationOfManyRows) { MAX_ROWS } else { MAX_ROWS.min(rows as u64) };
        let val = evaluate(model, tokens, windows, tokenizer, rows, &*self.processes.comm);
        let val = val.map_err(|error| match error {
            evaluate::Error::Model(error) => Error::Model(error.at_step(step)),
            error => Error::Evaluate(error),
        })?;
        let is_best = self.state.best.is_none_or(|(best, _)| val.loss < best);
        if is_best || faults::on(Fault::BestWeightsOfLastEvaluation) {
            self.state.best = Some((val.loss, step));
        }
        Ok(Some(val))
    }

    fn log(
        &mut self,
        report: &StepReport,
        val: Option<&Evaluation>,
        norms: &BTreeMap<String, f64>,
    ) -> Result<(), Error> {
        let Some(files) = &mut self.files else { return Ok(()) };
        Ok(files.metrics.write(&Line {
            step: report.step,
            loss: report.loss,
            grad_norm: report.grad_norm,
            learning_rate: report.learning_rate,
            num_tokens: report.target_tokens,
            val_loss: val.map(|v| v.loss),
            val_perplexity: val.map(Evaluation::perplexity),
            val_bits_per_byte: val.and_then(Evaluation::bits_per_byte),
            norms,
        })?)
    }

    fn save(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        observer.enter(Phase::Save)?;
        self.trainer.leave()?;
        if let Some(RunFiles { checkpoints, best, metrics }) = &mut self.files {
            metrics.sync()?;
            let saved = save(checkpoints, self.config, self.trainer, &self.source.tokenizer, self.state)?;
            observer.saved(saved.path, saved.not_pruned);
            if let Some(best) = best {
                best.retain_step(self.state.best.map(|(_, step)| step)).map_err(StoreError::from)?;
            }
        }
        Ok(self.trainer.join(&self.processes)?)
    }
}

/// Saves a checkpoint of a run with the record of its configuration and the chat template that it is trained with.
///
/// # Errors
/// As [`store::save`].
pub fn save(
    checkpoints: &CheckpointDir,
    config: &RunConfig,
    trainer: &Trainer,
    tokenizer: &Tokenizer,
    state: RunState,
) -> Result<SavedCheckpoint, StoreError> {
    let record = config::record(config);
    let files = [(run::RECORD, record.as_bytes())];
    store::save(checkpoints, trainer, &*with_trained_template(config, tokenizer), state, &files)
}

/// The tokenizer with the chat template that training used: a model that is fine-tuned with [`BUILT_IN`] keeps it, so
/// that other programs render conversations as its training data. A tokenizer without a token that ends a turn has no
/// template: its model is trained on prompts and completions.
pub fn with_trained_template<'t>(config: &RunConfig, tokenizer: &'t Tokenizer) -> Cow<'t, Tokenizer> {
    if config.train.task != TaskKind::Sft || !tokenizer.chat_templates().is_empty() {
        return Cow::Borrowed(tokenizer);
    }
    let with_template = tokenizer.clone().with_chat_template(BUILT_IN);
    with_template.map_or(Cow::Borrowed(tokenizer), Cow::Owned)
}
