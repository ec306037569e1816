//! Runs the training loop with progress output, logs and checkpoints.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::exit::{CliError, Exit, shell_word};
use super::follower::Follower;
use super::interrupt::Interrupt;
use super::memory_check::require_training;
use super::monitor::{Monitor, MonitorLogs};
use super::{logs, resumable, source};
use crate::config::{self, Packing, RunConfig, TaskKind, TrainSection};
use crate::decode::{EngineOptions, Request, SampleOptions, StopConditions, generate};
use crate::model::checkpoint::{CheckpointDir, CheckpointError, RealFs, Refused};
use crate::model::comm::Communicator;
use crate::model::data::PackingStats;
use crate::model::store::{self, Resumed, RunState};
use crate::model::tokenizer::Tokenizer;
use crate::model::{Model, Processes, Trainer};
use crate::report::{Progress, units};
use crate::run::{self, DataRecord, JsonLines, RunDir, has_checkpoint};
use crate::tensor::Device;
use crate::tensor::faults::{self, Fault};
use crate::training::{self, DataLoader, End, RunFiles, Source, Training};

/// A training run that is ready to start or to resume.
pub(super) struct Job {
    pub(super) config: RunConfig,
    pub(super) source: Source,
    pub(super) loader: DataLoader,
    pub(super) checkpoints: CheckpointDir,
    pub(super) run: RunDir,
    pub(super) trainer: Trainer,
    pub(super) state: RunState,
    /// The checkpoint that the run resumes from. `None`: a new run.
    pub(super) last_saved: Option<PathBuf>,
    /// The processes of the run, of which this is the first one.
    pub(super) processes: Processes,
}

/// A run with its newest loadable checkpoint.
pub(super) struct Restored {
    pub(super) parts: Follower,
    /// The checkpoint.
    pub(super) path: PathBuf,
    /// The locked checkpoints. `None`: another process writes the run.
    pub(super) checkpoints: Option<CheckpointDir>,
}

/// Opens the training data of a run. `config` gets the places where its files are now.
pub(super) fn open_data(
    run: &RunDir,
    config: &mut RunConfig,
    comm: &dyn Communicator,
) -> Result<(Source, DataRecord), CliError> {
    for file in config.data.files.iter_mut().chain(&mut config.data.val_files) {
        *file = in_run(run, file);
    }
    // as in the new run, with the end-of-text ids of its model, which every checkpoint has
    let eos = store::describe(run.path())?.eos;
    let tokenizer = run.as_recorded(tokenizer(run, config)?)?.with_eos_ids(&eos);
    let source = source::open_with(config, tokenizer).map_err(|error| {
        if error.exit() != Exit::Missing {
            return error;
        }
        error.hint(format_args!(
            "if the data was moved: xtrain train --resume {} --data FILE...{}",
            shell_word(run.path()),
            if config.data.val_files.is_empty() { "" } else { " --val-data FILE..." },
        ))
    })?;
    let data = source::record(config, &source)?;
    if comm.rank() == 0 {
        run.check_data(&data).map_err(|error| match error {
            run::Error::Missing { .. } => CliError::from(error)
                .hint("this file identifies the training data of the run; without it, start a new run"),
            _ => error.into(),
        })?;
    }
    Ok((source, data))
}

/// The run with its newest loadable checkpoint. Only the first process of `comm` locks the run and writes to it.
pub(super) fn restore(
    run: &RunDir,
    config: RunConfig,
    source: Source,
    device: &Device,
    comm: &dyn Communicator,
) -> Result<Restored, CliError> {
    require_training(&config, source.tokenizer.vocab_size(), device, comm.size())?;
    let open = || CheckpointDir::open(Arc::new(RealFs), run.path(), config.train.keep);
    let checkpoints = (comm.rank() == 0).then(open).transpose()?;
    let (compute, optim) = (training::compute(config.train.dtype), training::optim_config(&config));
    let Resumed { trainer, run_state: state, path, refused, .. } =
        store::resume(run.path(), compute, device, optim, training::schedule(&config))?;
    warn_refused(&refused);
    checkpoints.iter().for_each(|checkpoints| checkpoints.exclude(&refused));
    let loader = DataLoader::new(&config, &source, state.seed)?;
    let parts = Follower { config, source, loader, trainer, state };
    Ok(Restored { parts, path, checkpoints })
}

/// Warns of checkpoints that a run does not resume from.
pub(super) fn warn_refused(refused: &[Refused]) {
    for refused in refused {
        // after an error of reading, the checkpoint may be whole
        let advice = match refused.why {
            CheckpointError::Io { .. } => "it is not used",
            _ => "it is not used and can be deleted",
        };
        eprintln!("warning: {refused}; {advice}");
    }
}

/// The path of a data file: in the run directory if it exists only there, because the run was moved.
fn in_run(run: &RunDir, file: &str) -> String {
    let moved = Path::new(file).file_name().map(|name| run.path().join(name));
    match moved.filter(|moved| !Path::new(file).exists() && moved.is_file()) {
        Some(moved) => moved.to_string_lossy().into_owned(),
        None => file.to_string(),
    }
}

/// The tokenizer of the configuration, or that of the checkpoint if it no longer exists.
fn tokenizer(run: &RunDir, config: &RunConfig) -> Result<Tokenizer, CliError> {
    let name = &config.data.tokenizer;
    if name == "bytes" || Path::new(name).exists() {
        return source::tokenizer(name);
    }
    eprintln!("note: {name} not found; using the tokenizer of the checkpoint");
    Ok(store::tokenizer_of(run.path())?)
}

impl Job {
    /// A run of this process alone. `last_saved`: the checkpoint that it resumes from.
    pub(super) fn new(
        parts: Follower,
        run: RunDir,
        checkpoints: CheckpointDir,
        last_saved: Option<PathBuf>,
    ) -> Job {
        let Follower { config, source, loader, trainer, state } = parts;
        let processes = Processes::default();
        Job { config, source, loader, checkpoints, run, trainer, state, last_saved, processes }
    }

    /// Replaces the configuration of the run with `text`. If a recorded key has changed since `old`, saves the
    /// checkpoint that the run resumes from again and prints the changes.
    pub(super) fn record_changes(&mut self, old: &RunConfig, text: &str) -> Result<(), CliError> {
        let (before, now) = (config::record(old), config::record(&self.config));
        if before == now {
            return Ok(self.run.write_config(text)?);
        }
        resumable::print_changes(&before, &self.config)?;
        self.run.write_pending_config(text)?;
        let (tokenizer, state) = (&self.source.tokenizer, self.state);
        let saved = training::save(&self.checkpoints, &self.config, &self.trainer, tokenizer, state)?;
        self.last_saved = Some(saved.path);
        Ok(self.run.write_config(text)?)
    }
}

/// Trains until the last step or a signal, as a session of the run.
pub(super) fn run_training(
    job: &mut Job,
    interrupt: Interrupt,
    engine: EngineOptions,
) -> Result<(), CliError> {
    let (run, step) = (job.run.clone(), job.trainer.step_number());
    let device = job.trainer.model.device().clone();
    logs::session(&run, &device, step, || train(job, interrupt, engine))
}

fn train(job: &mut Job, interrupt: Interrupt, engine: EngineOptions) -> Result<(), CliError> {
    job.trainer.checkpointing = training::activation_checkpointing(&job.config);
    let (first_step, tokens) = (job.trainer.step_number(), job.trainer.target_tokens());
    let steps = job.config.train.steps as u64;
    eprintln!(
        "{} parameters, {} training tokens, {} validation tokens, {}, writing to {}",
        units::count(job.trainer.model.config().n_params() as u64),
        units::count(job.source.split.train.end),
        units::count(job.source.split.validation.end - job.source.split.validation.start),
        units::many(steps, "step"),
        job.run.path().display(),
    );
    print_packing_stats(job);
    let (validation, context) = (job.source.split.validation.clone(), job.config.train.context);
    let short = (1..=context as u64).contains(&(validation.end - validation.start));
    if short && job.config.data.packing == Packing::Stream {
        eprintln!(
            "note: the validation split is shorter than train.context; validation loss uses one short window"
        );
    }
    let (mut metrics, timings) = job.run.logs_after(first_step)?;
    // lines of later steps are removed also if the run generates no more samples
    let has_samples = job.config.train.sample_every > 0 || job.run.path().join("samples.jsonl").exists();
    let samples = has_samples.then(|| job.run.samples_after(first_step)).transpose()?;
    warn_of_damage([&metrics, &timings].into_iter().chain(&samples));
    // A new run has no line yet.
    let logged = job.run.read_metrics().unwrap_or_default();
    logs::warn_of_gap(&job.run, &logged, first_step);
    let events = logs::event_file(&job.run, &logged)?;
    let logs = MonitorLogs { timings, samples, events };
    let sampler = |model: &Model, step: u64| generate_samples(model, &job.source, &job.config, step, engine);
    let progress = Progress::new("training", "step", steps, first_step);
    let mut monitor = Monitor::new(progress, logs, interrupt, &sampler, tokens);
    monitor.last_saved = job.last_saved.take();
    let best_step = job.state.best.map(|(_, step)| step);
    let best = job.config.train.keep_best.then(|| best_dir(&job.run, best_step)).transpose()?;
    if let (Some(_), Some(step)) = (&best, best_step)
        && !has_checkpoint(&job.run.path().join("best"))
    {
        eprintln!(
            "note: the weights of step {step}, which has the lowest validation loss so far, were not kept; best/ gets \
             weights at the next lower loss"
        );
    }
    let mut training = Training {
        config: &job.config,
        source: &job.source,
        loader: &job.loader,
        files: Some(RunFiles { checkpoints: &job.checkpoints, best: best.as_ref(), metrics: &mut metrics }),
        trainer: &mut job.trainer,
        state: job.state,
        processes: job.processes.clone(),
    };
    let (end, best) = (training.run(&mut monitor), training.state.best);
    let Monitor { progress, interrupt, last_saved, .. } = monitor;
    progress.finish();
    if let (Ok(End::Early), Some((loss, step))) = (&end, best) {
        eprintln!(
            "stopped early: no lower validation loss in {}; the lowest is {loss:.4} at step {step}",
            units::many(job.config.train.patience as u64, "evaluation")
        );
    }
    match (end.map_err(CliError::from), interrupt.requested(), last_saved) {
        (Ok(End::Stopped), Some(exit), _) => {
            let resume = format!("to resume: xtrain train --resume {}", shell_word(job.run.path()));
            Err(CliError::new(exit, "stopped by a signal; checkpoint saved").hint(resume))
        }
        (Ok(End::Done | End::Early | End::Stopped), ..) => Ok(()),
        (Err(error), _, Some(path)) if error.exit() == Exit::Diverged => Err(error.hint(format_args!(
            "the last checkpoint is {}; a resume repeats these steps bit for bit unless it changes the learning rate; if that \
             fails, too, --init an older checkpoint; to resume: xtrain train --resume {}{}",
            path.display(),
            shell_word(job.run.path()),
            half_learning_rate(&job.config.train),
        ))),
        (Err(error), _, Some(path)) => Err(error.hint(format_args!(
            "to resume from {}: xtrain train --resume {}",
            path.display(),
            shell_word(job.run.path()),
        ))),
        (Err(error), _, None) => {
            Err(error.hint(format_args!("to start it again: xtrain train --resume {}", shell_word(job.run.path()))))
        }
    }
}

/// Reports damaged lines of the logs of a run.
pub(super) fn warn_of_damage<'a>(logs: impl IntoIterator<Item = &'a JsonLines>) {
    logs.into_iter().filter_map(JsonLines::set_aside).for_each(|damage| eprintln!("warning: {damage}"));
}

/// `best/` of a run: a directory of checkpoints with a copy of the configuration, which opens as a model. Removes
/// all weights but those of `step`: a run that was killed may have saved weights of steps that a resume repeats.
fn best_dir(run: &RunDir, step: Option<u64>) -> Result<CheckpointDir, CliError> {
    let path = run.path().join("best");
    // The training loop removes the weights that are no longer the best ones.
    let best = CheckpointDir::open(Arc::new(RealFs), &path, usize::MAX)?;
    best.retain_step(step)?;
    let config =
        std::fs::read_to_string(run.config()).map_err(|error| CliError::io(&run.config(), &error))?;
    RunDir::open(&path)?.write_config(&config)?;
    Ok(best)
}

/// Generates `sample.count` continuations of `sample.prompt` at `step`. Each has its own sample id, so the text is a
/// function of the configuration, the data, the weights and the step. Fails if the prompt fills the context of the
/// model.
fn generate_samples(
    model: &Model,
    source: &Source,
    config: &RunConfig,
    step: u64,
    engine: EngineOptions,
) -> Result<Vec<String>, CliError> {
    let (s, tokenizer) = (&config.sample, &source.tokenizer);
    let (ids, prompt) = match s.prompt.is_empty() && config.train.task == TaskKind::Sft {
        true => {
            let ids = source.first_turn(config.train.context.max(2) - 1)?;
            let text = tokenizer.decode(&ids);
            (ids, text)
        }
        false => (tokenizer.encode_with_bos(&s.prompt)?, s.prompt.clone()),
    };
    let first_id = if faults::on(Fault::SamplesOfStepsShareIds) { 0 } else { step * s.count as u64 };
    let request = |i: u64| Request {
        id: first_id + i,
        seed: config.train.seed,
        prompt: ids.clone(),
        options: SampleOptions::filtered(s.temperature as f32, s.top_k, s.top_p as f32, s.min_p as f32),
        max_new: s.max_new,
        stop: StopConditions { eos: tokenizer.eos_ids().to_vec(), tokens: Vec::new() },
        constraint: None,
        top_logprobs: 0,
    };
    let requests = (0..s.count as u64).map(request).collect();
    let completions = generate(model, requests, engine)?;
    Ok(completions.iter().map(|completion| format!("{prompt}{}", completion.text(tokenizer))).collect())
}

/// Prints how many documents were packed, split, truncated or skipped.
fn print_packing_stats(job: &Job) {
    let Some(PackingStats { documents, long, empty, inputs }) = job.loader.packing_stats() else { return };
    let (windows, context) = (job.loader.per_epoch(), job.config.train.context);
    let (kind, action) = match job.config.train.task {
        TaskKind::Lm => ("document", "split"),
        TaskKind::Sft => ("conversation", "truncated"),
    };
    eprintln!(
        "{} packed into {} of {context} tokens ({:.1} % full), {:.1} epochs",
        units::many(documents - empty, kind),
        units::many(windows, "window"),
        100.0 * inputs as f64 / (windows * context as u64) as f64,
        (job.config.train.steps * job.config.train.batch) as f64 / windows as f64,
    );
    if long > 0 {
        eprintln!("note: {} longer than train.context = {context}: {action}", units::many(long, kind));
    }
    if empty > 0 {
        let skipped = units::many(empty, kind);
        eprintln!("note: {skipped} without target tokens in the first {context} tokens: skipped");
    }
}

/// The flags that halve the learning rate, and its other limits where they would be above it.
fn half_learning_rate(train: &TrainSection) -> String {
    let rate = train.learning_rate / 2.0;
    let others = [
        ("initial_learning_rate", train.initial_learning_rate),
        ("min_learning_rate", train.min_learning_rate),
    ];
    let above = others.into_iter().filter(|other| other.1 > rate).map(|other| other.0);
    // digits without a point or an exponent would be an integer, which has a maximum
    let flags =
        std::iter::once("learning_rate").chain(above).map(|key| format!(" --set train.{key}={rate:?}"));
    flags.collect()
}
