//! `xtrain grpo`: reinforcement learning with verifiable rewards.
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use toml::Value;

use super::common::{CacheFlags, Common, Layers, Seed};
use super::exit::{CliError, Exit};
use super::grpo_monitor::GrpoMonitor;
use super::interrupt::Interrupt;
use super::job::{self, Job};
use super::{dry_run, init, loaded, source, train};
use crate::config::{GrpoSection, Layer, ModelSection, RunConfig};
use crate::decode::KvMemory;
use crate::grpo::batch::Prompt;
use crate::grpo::prompts::{PromptSource, text_prompt};
use crate::grpo::score::Scorer;
use crate::grpo::{self, Grpo, from_config};
use crate::model::checkpoint::{CheckpointDir, RealFs};
use crate::model::data::{DocumentSink as _, Role, TokenWriter};
use crate::model::export::ExportSource;
use crate::model::store::{self, LoadedModel, Resumed, RunState};
use crate::model::tasks::{self, EncodedPrompt, PromptFile, PromptRecord, PromptSet, Task, TaskCorpus};
use crate::model::tokenizer::Tokenizer;
use crate::model::{Model, Trainer};
use crate::report::{EventFile, units};
use crate::rewards::{ExternalOptions, ExternalReward, RESERVED_COLUMNS, Reward, TaskReward};
use crate::run::{self, DataRecord, RunDir};
use crate::tensor::Device;
use crate::training::{self, DataLoader, End};

/// Directory of the base model in the run directory, and its corpus.
const BASE: &str = "base";
/// Directory of an updated reference model in the run directory.
const REFERENCE: &str = "reference";
const CORPUS: &str = "corpus.tok";

/// Flags of `xtrain grpo`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
A step generates num_generations completions of each of prompts_per_step prompts, scores them, and updates the model \
with their advantages. The trainer's log-probabilities are bit-identical to the sampler's; each step compares them \
and stops with an error if one bit differs. A loss near 0 is expected on-policy: watch the reward.

Without --init, a built-in task first trains a base model in RUN/base, with [model] and [train], on text in which a \
fraction grpo.wrong_answers of the answers is wrong.

Ctrl-C discards the current rollouts, or finishes the step if they are complete, saves a checkpoint and exits with \
code 130. --resume continues the run; weights, metrics.jsonl and rollouts/ are bit-identical to those of an \
uninterrupted run.

Examples:
  xtrain grpo -c configs/grpo.toml
  xtrain grpo -c configs/grpo.toml --seed 1 --set grpo.steps=100 --run runs/short
  xtrain grpo --init Qwen3-0.6B --prompts prompts.jsonl --reward 'python3 my_reward.py' --run runs/mine
  xtrain grpo --resume runs/grpo")]
pub(super) struct GrpoArgs {
    /// Built-in task: prompts, rewards and base model; alias for grpo.task.
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// JSONL file of prompts; alias for grpo.prompts.
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Reward program with its arguments; may be repeated; alias for grpo.reward.
    #[arg(long, value_name = "COMMAND")]
    reward: Vec<String>,
    /// Directory of the new run [default: runs/NAME, where NAME is the name of the last configuration file].
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Initial weights: a run, a checkpoint, a Hugging Face directory or a GGUF file; alias for train.init.
    #[arg(long, value_name = "MODEL")]
    init: Option<PathBuf>,
    /// Resume a run: its directory, or its name under runs/.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "run", "init", "task", "prompts", "reward"])]
    resume: Option<PathBuf>,
    /// Print the resolved configuration and the memory estimate, and exit.
    #[arg(long)]
    dry_run: bool,
    /// The configuration.
    #[command(flatten)]
    layers: Layers,
    /// The seed.
    #[command(flatten)]
    seed: Seed,
    /// Device.
    #[command(flatten)]
    common: Common,
    /// KV cache.
    #[command(flatten)]
    cache: CacheFlags,
}

/// Trains with rewards.
///
/// # Errors
/// See [`super::Exit`].
pub(super) fn run(args: &GrpoArgs) -> Result<(), CliError> {
    let (run, config) = match &args.resume {
        Some(name) => {
            let run = RunDir::open(name)?;
            let config = args.resumed(&run)?;
            (Some(run), config)
        }
        None => (None, RunConfig::load(&args.config_layers())?),
    };
    let section = section(&config)?.clone();
    let task = task(&section)?;
    check_weights(&section)?;
    if args.dry_run {
        let config = with_sizes_of_init(config)?;
        let prompts = task.iter().flat_map(|task| task.prompts(PromptSet::HeldOut));
        let longest = prompts.map(|prompt| prompt.len()).max().unwrap_or(section.max_prompt_length);
        return dry_run::print_grpo(&config, longest);
    }
    let device = args.common.open()?;
    check_files(&config, &section, task.is_some())?;
    let config = if run.is_none() { with_sizes_of_init(config)? } else { config };
    let start = Start { args, config: &config, section: &section, task: task.as_deref(), device: &device };
    let interrupt = Interrupt::install()?;
    let (run, rewards) = match run {
        Some(run) => {
            let rewards = start.rewards(&run)?;
            (run, rewards)
        }
        None => {
            let run = create(&args.new_run(), &config)?;
            // A reward program that does not start leaves no run behind.
            let rewards = start.rewards(&run).inspect_err(|_| drop(fs::remove_dir_all(run.path())))?;
            (run, rewards)
        }
    };
    let mut ready = start.open(&run, &interrupt)?;
    start.train(&run, &mut ready, rewards, interrupt)
}

/// The configuration with the sizes of the model that `train.init` names, whatever `[model]` says.
fn with_sizes_of_init(mut config: RunConfig) -> Result<RunConfig, CliError> {
    if !config.train.init.is_empty() {
        let context = store::config_of(&loaded::find(Path::new(&config.train.init))?)?.max_positions;
        config.model = ModelSection::default();
        // No base model is trained: the context of its windows has no meaning.
        config.train.context = config.train.context.min(context);
        init::describe(&mut config)?;
    }
    Ok(config)
}

/// Checks that the initial model and the prompts can be found, before the run directory is created.
fn check_files(config: &RunConfig, section: &GrpoSection, has_task: bool) -> Result<(), CliError> {
    match config.train.init.as_str() {
        "" if !has_task => return Err(no_initial_weights()),
        "" => {}
        init => drop(loaded::find(Path::new(init))?),
    }
    for file in [&section.prompts, &section.eval_prompts] {
        if !file.is_empty() {
            check_columns(section, file)?;
        }
    }
    Ok(())
}

/// Checks that no column of the prompts has a name that xtrain uses in the lines to reward programs.
fn check_columns(section: &GrpoSection, file: &str) -> Result<(), CliError> {
    let prompts = PromptFile::open(Path::new(file))?;
    for record in prompts.records().iter().filter(|_| !section.reward.is_empty()) {
        if let Some(name) = RESERVED_COLUMNS.iter().find(|name| record.columns.contains_key(**name)) {
            let message = format!("{file}:{}: column {name:?}: expected another name", record.line);
            return Err(CliError::new(Exit::Data, message)
                .hint("this name is reserved in the lines to reward programs"));
        }
    }
    Ok(())
}

/// Creates the directory of a new run.
fn create(path: &Path, config: &RunConfig) -> Result<RunDir, CliError> {
    RunDir::create(path, config).map_err(|error| match error {
        run::Error::Exists { .. } => {
            let path = path.display();
            let hint =
                format!("to resume it: xtrain grpo --resume {path}; to use another directory: --run DIR");
            CliError::from(error).hint(hint)
        }
        _ => error.into(),
    })
}

/// Whether a run has a checkpoint. A save that was killed leaves a temporary directory, which is none.
fn has_checkpoint(run: &Path) -> bool {
    let mut files = run.join("checkpoints").read_dir().into_iter().flatten().flatten();
    files.any(|file| {
        let name = file.file_name();
        let name = name.to_string_lossy();
        name.starts_with("step_") && !name.contains(".tmp-")
    })
}

/// Checks the number of reward weights as far as it is known before a reward program has replied.
fn check_weights(section: &GrpoSection) -> Result<(), CliError> {
    let (programs, found) = (section.reward.len(), section.reward_weights.len());
    if found == 0 {
        return Ok(());
    }
    if programs == 0 && found != 1 {
        return Err(grpo::Error::RewardWeights { names: vec![section.task.clone()], found }.into());
    }
    if found < programs {
        let message = format!(
            "grpo.reward_weights: expected at least {programs} weights, one for each reward, found {found}"
        );
        return Err(CliError::new(Exit::Usage, message));
    }
    Ok(())
}

/// `[grpo]` of the configuration.
fn section(config: &RunConfig) -> Result<&GrpoSection, CliError> {
    config.grpo.as_ref().ok_or_else(|| {
        CliError::new(Exit::Usage, "the configuration has no [grpo] section")
            .hint("start with -c configs/grpo.toml, or set --task or --prompts")
    })
}

/// The task of the configuration. `None`: the prompts come from a file.
fn task(section: &GrpoSection) -> Result<Option<Box<dyn Task + Send + Sync>>, CliError> {
    match (section.task.as_str(), section.prompts.as_str()) {
        ("", "") => Err(CliError::new(Exit::Usage, "no prompts: grpo.task and grpo.prompts are empty")
            .hint("--task NAME names a built-in task, --prompts FILE a JSONL file")),
        ("", _) if section.reward.is_empty() => {
            Err(CliError::new(Exit::Usage, "no reward: grpo.prompts requires grpo.reward")
                .hint("--reward 'python3 my_reward.py' names a reward program"))
        }
        ("", _) => Ok(None),
        (name, _) => Ok(tasks::by_name(name)),
    }
}

fn no_initial_weights() -> CliError {
    CliError::new(Exit::Usage, "no initial weights: train.init is empty")
        .hint("--init MODEL names a run, a checkpoint, a Hugging Face directory or a GGUF file")
}

/// What a run starts from.
struct Start<'a> {
    args: &'a GrpoArgs,
    config: &'a RunConfig,
    section: &'a GrpoSection,
    task: Option<&'a (dyn Task + Send + Sync)>,
    device: &'a Device,
}

/// A run that is ready to start or to resume.
struct Ready {
    trainer: Trainer,
    reference: Option<Model>,
    tokenizer: Tokenizer,
}

impl Start<'_> {
    /// Opens the newest checkpoint of the run, or its initial model.
    fn open(&self, run: &RunDir, interrupt: &Interrupt) -> Result<Ready, CliError> {
        let (optim, schedule) =
            (from_config::optim_config(self.section), from_config::schedule(self.section));
        let compute = training::compute(self.config.train.dtype);
        let (trainer, tokenizer, eos) = match has_checkpoint(run.path()) {
            false => {
                let LoadedModel { model, tokenizer, eos, .. } = self.initial(run, interrupt)?;
                (Trainer::new(model, optim, schedule)?, tokenizer, eos)
            }
            true => {
                let resumed = store::resume(run.path(), compute, self.device, optim, schedule)?;
                let Resumed { trainer, refused, eos, path, .. } = resumed;
                refused.iter().for_each(|refused| eprintln!("warning: {refused}"));
                (trainer, Some(store::tokenizer_of(&path)?), eos)
            }
        };
        let tokenizer = match tokenizer {
            Some(tokenizer) => tokenizer,
            None => source::tokenizer(&self.config.data.tokenizer)?,
        };
        let tokenizer = tokenizer.with_eos_ids(&eos);
        self.check_data(run, &tokenizer)?;
        let step = trainer.step_number();
        let reference = (self.section.beta > 0.0).then(|| self.reference(run, step)).transpose()?;
        Ok(Ready { trainer, reference, tokenizer })
    }

    /// Records the digests of the prompts in a new run; rejects a resume with other prompts.
    fn check_data(&self, run: &RunDir, tokenizer: &Tokenizer) -> Result<(), CliError> {
        let files =
            [&self.section.prompts, &self.section.eval_prompts].into_iter().filter(|file| !file.is_empty());
        let record = DataRecord::of_files(files, &self.config.data.tokenizer, tokenizer)?;
        match run.path().join("data.json").exists() {
            true => Ok(run.check_data(&record)?),
            false => Ok(run.write_data(&record)?),
        }
    }

    /// The reference model of the checkpoint of `step`. A new run copies the initial model to RUN/reference, so that a
    /// resume does not depend on the files of the initial model.
    fn reference(&self, run: &RunDir, step: u64) -> Result<Model, CliError> {
        let (compute, dir) = (training::compute(self.section.ref_dtype), run.path().join(REFERENCE));
        if step == 0 && !has_checkpoint(&dir) {
            let initial = store::open(&self.initial_path(run)?, compute, self.device)?;
            let LoadedModel { model, tokenizer, eos, .. } = &initial;
            let checkpoints = CheckpointDir::open(Arc::new(RealFs), &dir, self.section.keep)?;
            let source = ExportSource { model, tokenizer: tokenizer.as_ref(), eos };
            let _ = store::save_model(&checkpoints, &source, 0)?;
        }
        let is_updated = self.section.ref_model_sync_steps > 0;
        let saved = if is_updated { step } else { 0 };
        let path = dir.join("checkpoints").join(format!("step_{saved:06}"));
        match is_updated {
            true => Ok(store::open(&path, compute, self.device)?.model),
            false => Ok(store::open_for_inference(&path, compute, self.device)?.model),
        }
    }

    fn initial_path(&self, run: &RunDir) -> Result<PathBuf, CliError> {
        match self.config.train.init.as_str() {
            "" => Ok(run.path().join(BASE)),
            init => loaded::find(Path::new(init)),
        }
    }

    /// The initial model: that of `train.init`, or the base model of the task, which is trained first.
    fn initial(&self, run: &RunDir, interrupt: &Interrupt) -> Result<LoadedModel, CliError> {
        if self.config.train.init.is_empty() {
            self.train_base(&run.path().join(BASE), interrupt)?;
        }
        let path = self.initial_path(run)?;
        Ok(store::open(&path, training::compute(self.config.train.dtype), self.device)?)
    }

    /// Trains the base model, or finishes its training.
    fn train_base(&self, path: &Path, interrupt: &Interrupt) -> Result<(), CliError> {
        let Some(task) = self.task else {
            return Err(no_initial_weights());
        };
        if path.join("checkpoints").join(format!("step_{:06}", self.config.train.steps)).is_dir() {
            return Ok(());
        }
        let mut job = match has_checkpoint(path) {
            true => {
                let run = RunDir::open(path)?;
                let config = RunConfig::load(&[Layer::File(run.config())])?;
                job::resume(run, config, self.device)?
            }
            false => self.new_base(path, task)?,
        };
        eprintln!(
            "training the base model on {} with {} % wrong answers",
            task.name(),
            100.0 * self.section.wrong_answers
        );
        let end = job::run_training(&mut job, interrupt.clone(), self.args.cache.engine());
        let run = path.parent().unwrap_or(path).display();
        end.map_err(|error| match error.exit() {
            Exit::Interrupted | Exit::Terminated => {
                error.hint(format_args!("to resume: xtrain grpo --resume {run}"))
            }
            _ => error,
        })
    }

    /// A base model before its first step. Replaces what a killed process left before its first checkpoint.
    fn new_base(&self, path: &Path, task: &(dyn Task + Send + Sync)) -> Result<Job, CliError> {
        if path.is_dir() {
            fs::remove_dir_all(path).map_err(|error| CliError::io(path, &error))?;
        }
        let corpus = path.join(CORPUS);
        let mut config = RunConfig { grpo: None, ..self.config.clone() };
        config.data.files = vec![corpus.to_string_lossy().into_owned()];
        let tokenizer = source::tokenizer(&config.data.tokenizer)?;
        let trainer = training::new_trainer(&config, tokenizer.vocab_size(), self.device)?;
        let run = RunDir::create(path, &config)?;
        let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), config.train.keep)?;
        let documents = TaskCorpus::new(task, config.train.seed, self.section.wrong_answers)?;
        let train = &config.train;
        let count = (train.steps * train.batch * train.context) as u64;
        let mut writer = TokenWriter::create(&corpus, &tokenizer)?;
        for document in documents.documents() {
            if writer.count() >= count.clamp(1 << 16, 1 << 22) {
                break;
            }
            writer.push(&tokenizer.encode(&document)?, Role::Target)?;
            writer.end_document()?;
        }
        writer.finish()?;
        let source = source::open(&config)?;
        run.write_data(&DataRecord::of(&config, &source.tokens, &source.tokenizer)?)?;
        let state = RunState { seed: config.train.seed, best: None };
        let loader = DataLoader::new(&config, &source, config.train.seed)?;
        Ok(Job { config, source, loader, checkpoints, run, trainer, state, last_saved: None })
    }

    /// Runs the loop.
    fn train(
        &self,
        run: &RunDir,
        ready: &mut Ready,
        rewards: Vec<Box<dyn Reward>>,
        interrupt: Interrupt,
    ) -> Result<(), CliError> {
        let (section, seed) = (self.section, self.config.train.seed);
        let Ready { trainer, reference, tokenizer } = ready;
        let (step, steps) = (trainer.step_number(), section.steps as u64);
        let mut scorer = Scorer::new(rewards, section.reward_weights.clone());
        let max_positions = trainer.model.config().max_positions;
        let held_out = self.held_out(tokenizer, max_positions)?;
        let prompts = match self.task {
            Some(task) => PromptSource::task(task, tokenizer, seed),
            None => PromptSource::list(self.prompts(&section.prompts, tokenizer, max_positions)?, seed),
        };
        let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), section.keep)?;
        let reference_checkpoints = (reference.is_some() && section.ref_model_sync_steps > 0)
            .then(|| CheckpointDir::open(Arc::new(RealFs), &run.path().join(REFERENCE), section.keep))
            .transpose()?;
        let (mut metrics, timings) = run.logs_from(step)?;
        eprintln!(
            "{} parameters, {} prompts x {} completions per step, {} steps, writing to {}",
            units::count(trainer.model.config().n_params() as u64),
            section.prompts_per_step,
            section.num_generations,
            steps,
            run.path().display(),
        );
        let mut monitor = GrpoMonitor::new(section, timings, self.events(run)?, interrupt, step);
        let end = Grpo {
            section,
            seed,
            reference: reference.take(),
            reference_checkpoints: reference_checkpoints.as_ref(),
            tokenizer,
            prompts: &prompts,
            held_out: &held_out,
            rollout: from_config::rollout_options(section, seed, self.args.cache.engine()),
            kv_memory: KvMemory::default(),
            advantages: from_config::advantage_options(section),
            updater: from_config::updater(section),
            scorer: &mut scorer,
            run,
            checkpoints: &checkpoints,
            metrics: &mut metrics,
            trainer,
        }
        .run(&mut monitor);
        let signal = monitor.finish();
        let resume = format!("to resume: xtrain grpo --resume {}", run.path().display());
        match (end, signal) {
            (Ok(End::Stopped), Some(exit)) => {
                Err(CliError::new(exit, "stopped by a signal; checkpoint saved").hint(resume))
            }
            (Ok(_), _) => Ok(()),
            (Err(error), _) => Err(CliError::from(error).hint(resume)),
        }
    }

    /// The event file of TensorBoard, with the metrics so far.
    fn events(&self, run: &RunDir) -> Result<EventFile, CliError> {
        let path = run.path().join("logs").join("events.out.tfevents.0.xtrain");
        let io = |error| CliError::io(&path, &error);
        let mut events = EventFile::create(&path).map_err(io)?;
        let Ok(metrics) = run.read_metrics() else { return Ok(events) };
        for (step, values) in metrics.steps() {
            events.write(step, 0.0, values).map_err(io)?;
        }
        Ok(events)
    }

    /// The reward programs, or the reward of the task.
    fn rewards(&self, run: &RunDir) -> Result<Vec<Box<dyn Reward>>, CliError> {
        if self.section.reward.is_empty() {
            let task = tasks::by_name(&self.section.task).expect("the configuration was checked");
            return Ok(vec![Box::new(TaskReward::new(task))]);
        }
        let logs = run.path().join("logs");
        let start = |(at, command): (usize, &String)| -> Result<Box<dyn Reward>, CliError> {
            let options = ExternalOptions {
                processes: self.section.reward_processes,
                time_limit: Duration::from_secs_f64(self.section.reward_timeout),
                log_dir: Some(logs.clone()),
                first_log: at * self.section.reward_processes,
            };
            Ok(Box::new(ExternalReward::start(command, &options)?))
        };
        self.section.reward.iter().enumerate().map(start).collect()
    }

    /// The prompts of a JSONL file. Each leaves room for one token in `max_positions`.
    fn prompts(
        &self,
        file: &str,
        tokenizer: &Tokenizer,
        max_positions: usize,
    ) -> Result<Vec<Arc<Prompt>>, CliError> {
        let prompts = PromptFile::open(Path::new(file))?;
        let encoded = prompts.encode(tokenizer)?;
        let context = max_positions.saturating_sub(1);
        let max = self.section.max_prompt_length.min(context);
        let hint = match max == context {
            true => "shorten the prompt; a completion needs at least one position of the model's context",
            false => "raise grpo.max_prompt_length, or shorten the prompt",
        };
        let prompt = |(record, prompt): (&PromptRecord, EncodedPrompt)| {
            let EncodedPrompt { text, ids } = prompt;
            if ids.len() > max {
                let found = ids.len();
                let message = format!(
                    "{file}:{}: expected a prompt of at most {max} tokens, found {found}",
                    record.line
                );
                return Err(CliError::new(Exit::Data, message).hint(hint));
            }
            Ok(Arc::new(Prompt { text, ids, columns: record.columns.clone() }))
        };
        prompts.records().iter().zip(encoded).map(prompt).collect()
    }

    /// The held-out prompts: those of `grpo.eval_prompts`, or of the task.
    fn held_out(&self, tokenizer: &Tokenizer, max_positions: usize) -> Result<Vec<Arc<Prompt>>, CliError> {
        let mut prompts = match (self.section.eval_prompts.as_str(), self.task) {
            ("", None) => Vec::new(),
            ("", Some(task)) => {
                let texts = task.prompts(PromptSet::HeldOut).into_iter();
                let prompts = texts.map(|text| Ok(Arc::new(text_prompt(text, tokenizer)?)));
                prompts.collect::<Result<_, crate::grpo::Error>>()?
            }
            (file, _) => self.prompts(file, tokenizer, max_positions)?,
        };
        if self.section.eval_limit > 0 {
            prompts.truncate(self.section.eval_limit);
        }
        Ok(prompts)
    }
}

impl GrpoArgs {
    /// The configuration that a resumed run continues with.
    fn resumed(&self, run: &RunDir) -> Result<RunConfig, CliError> {
        let mut layers = vec![Layer::File(run.config())];
        layers.extend(self.config_layers());
        let (old, config) = (RunConfig::load(&layers[..1])?, RunConfig::load(&layers)?);
        if old != config {
            return Err(CliError::new(Exit::Usage, "--resume cannot change the configuration of a grpo run"));
        }
        Ok(config)
    }

    fn config_layers(&self) -> Vec<Layer> {
        let text = |path: &Path| Value::String(path.to_string_lossy().into_owned());
        let mut layers: Vec<Layer> = self.init.iter().filter_map(|model| init::tokenizer(model)).collect();
        layers.extend(self.layers.layers());
        let mut flag = |flag, key, value| layers.push(Layer::Flag { flag, key, value });
        if let Some(model) = &self.init {
            flag("--init", "train.init", text(model));
        }
        if let Some(task) = &self.task {
            flag("--task", "grpo.task", Value::String(task.clone()));
        }
        if let Some(prompts) = &self.prompts {
            flag("--prompts", "grpo.prompts", text(prompts));
        }
        if !self.reward.is_empty() {
            let commands = self.reward.iter().cloned().map(Value::String).collect();
            flag("--reward", "grpo.reward", Value::Array(commands));
        }
        layers.extend(train::flag_layers(self.seed.seed, self.common.dtype));
        layers
    }

    fn new_run(&self) -> PathBuf {
        let stem = self.layers.config.last().and_then(|file| file.file_stem());
        self.run.clone().unwrap_or_else(|| Path::new("runs").join(stem.unwrap_or("grpo".as_ref())))
    }
}
