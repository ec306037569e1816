//! One run of training: batches in, updates, evaluations and checkpoints out.
use std::path::PathBuf;

use serde::Serialize;

use crate::config::{self, Precision, RunConfig};
use crate::evaluate::{self, Evaluation, evaluate, sample};
use crate::model::checkpoint::{CheckpointDir, CheckpointError};
use crate::model::data::{DataError, Order, Split, Tokens, Windows};
use crate::model::store::{self, Standing, StoreError};
use crate::model::tokenizer::Tokenizer;
use crate::model::{self, Config, Decay, Keep, Model, OptimConfig, Schedule, StepReport, Trainer};
use crate::run::{self, JsonLines};
use crate::tensor::{Device, Dtype};

/// Who is told what a run does, and may stop it.
pub trait Observer {
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

/// What a run trains on.
#[derive(Debug)]
pub struct Source {
    /// The tokens.
    pub tokens: Tokens,
    /// How text became them.
    pub tokenizer: Tokenizer,
    /// What is trained on, and what is held out.
    pub split: Split,
}

/// A run that can go on.
pub struct Training<'a> {
    /// The resolved configuration.
    pub config: &'a RunConfig,
    /// What it trains on.
    pub source: &'a Source,
    /// Where checkpoints go.
    pub checkpoints: &'a CheckpointDir,
    /// `metrics.jsonl`.
    pub metrics: &'a mut JsonLines,
    /// The model and its optimizer.
    pub trainer: &'a mut Trainer,
    /// The lowest validation loss so far.
    pub standing: Standing,
}

impl Training<'_> {
    /// Trains to the last step, or until the observer stops it. The weights after a step are a
    /// function of the configuration and the tokens alone: not of interruptions, threads or
    /// micro-batches.
    ///
    /// # Errors
    /// [`Error`]; the last good checkpoint stays.
    pub fn run(&mut self, observer: &mut dyn Observer) -> Result<End, Error> {
        let train = &self.config.train;
        let windows = windows(self.config, self.source, self.standing.seed)?;
        let last = train.steps as u64;
        if self.trainer.step_number() == 0 {
            self.save(observer)?;
        }
        while self.trainer.step_number() < last {
            let at = self.trainer.step_number();
            let excerpts = windows.batch(&self.source.tokens, at, train.batch as u32)?;
            let samples = excerpts.into_iter().map(sample).collect();
            let report = self.trainer.step(samples, train.micro_batch)?;
            let due =
                |every: usize| every > 0 && report.step.is_multiple_of(every as u64) || report.step == last;
            let val = if due(train.eval_every) { self.evaluate(report.step)? } else { None };
            self.log(&report, val.as_ref())?;
            observer.step(&report, val.as_ref())?;
            if due(train.sample_every) && train.sample_every > 0 {
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
        Ok(End::Done)
    }

    fn evaluate(&mut self, step: u64) -> Result<Option<Evaluation>, Error> {
        let Source { tokens, tokenizer, split } = self.source;
        if split.validation.end - split.validation.start < 2 {
            return Ok(None);
        }
        let train = &self.config.train;
        let limits = (train.context, train.eval_tokens);
        let val = evaluate(&self.trainer.model, tokens, split.validation.clone(), limits, tokenizer)?;
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
            num_tokens: report.tokens,
            val_loss: val.map(|v| v.loss),
            val_perplexity: val.map(Evaluation::perplexity),
            val_bits_per_byte: val.map(Evaluation::bits_per_byte),
        })?)
    }

    fn save(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        self.metrics.sync()?;
        let saved = store::save(self.checkpoints, self.trainer, &self.source.tokenizer, self.standing)?;
        observer.saved(saved.path, saved.not_pruned);
        Ok(())
    }
}

/// The training windows of a configuration, drawn from `seed`.
///
/// # Errors
/// A training part that does not hold a context and one more token.
pub fn windows(config: &RunConfig, source: &Source, seed: u64) -> Result<Windows, DataError> {
    let order = match config.train.order {
        config::Order::Random => Order::Random,
        config::Order::Shuffled => Order::Epochs,
    };
    Windows::new(source.split.train.clone(), config.train.context as u64, seed, order)
}

/// The model's shape in a configuration, for a vocabulary of `tokens`.
pub fn model_config(config: &RunConfig, tokens: usize) -> Config {
    let m = &config.model;
    Config {
        vocab: if m.vocab == 0 { tokens } else { m.vocab },
        dim: m.dim,
        ffn_dim: m.ffn_dim,
        n_layers: m.n_layers,
        n_heads: m.n_heads,
        n_kv_heads: m.n_kv_heads,
        head_dim: m.head_dim,
        max_positions: config.train.context.max(m.max_positions),
        rope_theta: m.rope_theta,
        norm_eps: m.norm_eps,
        qk_norm: m.qk_norm,
        tie_embeddings: m.tie_embeddings,
        ..Config::default()
    }
}

/// The type that a configuration computes in.
pub fn compute(precision: Precision) -> Dtype {
    match precision {
        Precision::F32 => Dtype::F32,
        Precision::Bf16 => Dtype::BF16,
    }
}

/// The optimizer of a configuration; no clipping is an infinite bound.
pub fn optim_config(config: &RunConfig) -> OptimConfig {
    let t = &config.train;
    let clip = if t.clip == 0.0 { f64::INFINITY } else { t.clip };
    OptimConfig { beta1: t.beta1, beta2: t.beta2, eps: t.eps, weight_decay: t.weight_decay, clip }
}

/// The learning rates of a configuration.
pub fn schedule(config: &RunConfig) -> Schedule {
    let t = &config.train;
    let decay = match t.schedule {
        config::Schedule::Constant => Decay::Constant,
        config::Schedule::Linear => Decay::Linear,
        config::Schedule::Cosine => Decay::Cosine,
        config::Schedule::Wsd => Decay::Wsd,
    };
    Schedule {
        decay,
        peak: t.learning_rate,
        min: t.min_learning_rate,
        warmup: t.warmup as u64,
        steps: t.steps as u64,
        fall: t.decay as u64,
    }
}

/// What a pass keeps for its backward.
pub fn keep(config: &RunConfig) -> Keep {
    match config.train.recompute {
        true => Keep::LayerInputs,
        false => Keep::Activations,
    }
}

/// A trainer at step 0, its weights drawn from the configuration's seed.
///
/// # Errors
/// [`model::Error::Config`] for a shape that no model can have.
pub fn begin(config: &RunConfig, tokens: usize, device: &Device) -> Result<Trainer, model::Error> {
    let model =
        Model::init(&model_config(config, tokens), compute(config.train.dtype), device, config.train.seed)?;
    Trainer::new(model, optim_config(config), schedule(config))
}
