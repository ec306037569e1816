//! A run of training under way: what it says, and how it ends.
use std::path::PathBuf;

use super::interrupt::Interrupt;
use super::monitor::Monitor;
use super::{CliError, sample};
use crate::config::{Packing, RunConfig, Task};
use crate::decode::EngineOptions;
use crate::model::checkpoint::CheckpointDir;
use crate::model::data::PackingStats;
use crate::model::store::RunState;
use crate::model::{Model, Trainer};
use crate::report::{Progress, units};
use crate::run::RunDir;
use crate::training::{self, End, Reading, Source, Training};

/// A run that is ready to go on.
pub(super) struct Job {
    pub(super) config: RunConfig,
    pub(super) source: Source,
    pub(super) reading: Reading,
    pub(super) checkpoints: CheckpointDir,
    pub(super) run: RunDir,
    pub(super) trainer: Trainer,
    pub(super) standing: RunState,
    /// The checkpoint that it was taken up from.
    pub(super) last_saved: Option<PathBuf>,
}

/// Trains to the end, or to a signal.
pub(super) fn go(job: &mut Job, interrupt: Interrupt, engine: EngineOptions) -> Result<(), CliError> {
    job.trainer.checkpointing = training::keep(&job.config);
    let (first, tokens) = (job.trainer.step_number(), job.trainer.target_tokens());
    let steps = job.config.train.steps as u64;
    eprintln!(
        "{} parameters, {} training tokens, {} held out, {} steps into {}",
        units::count(job.trainer.model.config().n_params() as u64),
        units::count(job.source.split.train.end),
        units::count(job.source.split.validation.end - job.source.split.validation.start),
        steps,
        job.run.path().display(),
    );
    said_of_documents(job);
    let (out, context) = (job.source.split.validation.clone(), job.config.train.context);
    let short = (1..=context as u64).contains(&(out.end - out.start));
    if short && job.config.data.packing == Packing::Stream {
        eprintln!(
            "note: what is held out is shorter than a context: each validation loss is of one short window"
        );
    }
    let (mut metrics, timings) = job.run.logs_after(first)?;
    let sampler =
        |model: &Model, step: u64| sample::draw(model, &job.source.tokenizer, &job.config, (step, engine));
    let progress = Progress::new("training", "step", steps, first);
    let mut monitor = Monitor::new(progress, timings, interrupt, (&sampler, tokens));
    monitor.last_saved = job.last_saved.take();
    let end = Training {
        config: &job.config,
        source: &job.source,
        reading: &job.reading,
        checkpoints: &job.checkpoints,
        metrics: &mut metrics,
        trainer: &mut job.trainer,
        standing: job.standing,
    }
    .run(&mut monitor);
    let signal = monitor.signal();
    let last = monitor.last_saved.clone();
    monitor.progress.finish();
    let resume = format!("go on with it: xtrain train --resume {}", job.run.path().display());
    match (end, signal) {
        (Ok(End::Done), _) => Ok(()),
        (Ok(End::Stopped), Some(exit)) => Err(CliError::new(exit, "stopped by a signal, saved").hint(resume)),
        (Ok(End::Stopped), None) => Ok(()),
        (Err(error), _) => {
            let error = CliError::from(error);
            Err(match last {
                Some(path) => error.hint(format_args!("the last good checkpoint is {}", path.display())),
                None => error,
            })
        }
    }
}

/// Says how documents fill windows, and what of them is not read.
fn said_of_documents(job: &Job) {
    let Some(PackingStats { documents, long, empty, inputs }) = job.reading.tally() else { return };
    let (windows, context) = (job.reading.per_epoch(), job.config.train.context);
    let (what, becomes) = match job.config.train.task {
        Task::Lm => ("document", "split"),
        Task::Sft => ("conversation", "cut off there"),
    };
    eprintln!(
        "{} in {} of at most {context} tokens ({:.1} % full), {:.1} epochs",
        units::many(documents, what),
        units::many(windows, "window"),
        100.0 * inputs as f64 / (windows * context as u64) as f64,
        (job.config.train.steps * job.config.train.batch) as f64 / windows as f64,
    );
    if long > 0 {
        eprintln!("note: {} longer than train.context = {context}: {becomes}", units::many(long, what));
    }
    if empty > 0 {
        eprintln!(
            "note: {} with nothing to learn within {context} tokens, left out",
            units::many(empty, what)
        );
    }
}
