//! `xtrain grpo`: reinforcement learning with verifiable rewards.
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use toml::Value;

mod base;
mod checks;
mod constraint;
mod follower;
mod initial;
mod monitor;
mod prompt_limit;
mod prompts;
mod resume;
mod reward_command;
mod reward_dir;
mod setup;
mod start;
mod train;
mod without_effect;

use super::cache_flags::ExactCacheFlags;
use super::common::{Common, Layers, Seed, count};
use super::exit::{CliError, shell_word};
use super::identity::{Identity, require_division};
use super::interrupt::Interrupt;
use super::memory_check::require_grpo;
use super::paths::make_absolute;
use super::resumed::ResumedConfig;
use super::train::learning_rate;
use super::{Exit, dry_run, init, logs, resumable, train as train_command};
use crate::config::{GrpoSection, Layer, Resolved, RunConfig};
use crate::model::checkpoint::{CheckpointDir, RealFs};
use crate::model::comm::Communicator;
use crate::model::tasks::{PromptSet, Task};
use crate::run::{RunDir, has_checkpoint};
use crate::tensor::faults::{self, Fault};
use checks::{check_files, check_inputs, check_programs, check_weights, section, task};
use initial::{check_unused, with_sizes_of_init};
use resume::resumed_config;
use setup::{Changes, Setup};

/// Flags of `xtrain grpo`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
A step generates num_generations completions of each of prompts_per_step prompts, scores them, and updates the model \
with their advantages. The trainer's log-probabilities are bit-identical to the sampler's; each step compares them \
and stops with an error if one bit differs. The loss does not measure progress: watch the reward.

Settings are keys of [grpo], such as grpo.steps, grpo.learning_rate, grpo.prompts_per_step, grpo.num_generations and \
grpo.max_completion_length, and a few keys of [train]. --dry-run prints all of them with their values, and \
docs/reference/config.md describes them. A reward program reads completions as lines of JSON and answers each with its reward: docs/guide/grpo.md.

Without --init, a built-in task first trains a base model in RUN/base, with [model] and [train], on text in which a \
fraction grpo.wrong_answers of the answers is wrong.

Ctrl-C during a rollout, or during the evaluation of step 0, discards its completions. At any other time the \
optimizer steps of the generation batch are finished, with their evaluation. Then a checkpoint is saved, and the exit \
code is 130. SIGTERM (143) and a closed terminal (129, on Linux) do the same. --resume continues the run; weights, metrics.jsonl and rollouts/ are bit-identical to those of an \
uninterrupted run.

Examples:
  xtrain grpo -c configs/grpo.toml
  xtrain grpo -c configs/grpo.toml --seed 1 --steps 100 --run runs/short
  xtrain grpo --init Qwen3-0.6B --prompts prompts.jsonl --reward 'python3 my_reward.py' \\
      --run runs/mine --lr 1e-6
  xtrain grpo --resume runs/grpo
  xtrain grpo --resume runs/short --steps 200
  mpirun -n 4 xtrain grpo -c configs/grpo.toml --set train.shards=4 --threads 1")]
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
    /// Number of optimizer steps; alias for grpo.steps.
    #[arg(long, value_name = "N", value_parser = count)]
    steps: Option<NonZeroUsize>,
    /// Peak learning rate; alias for grpo.learning_rate.
    #[arg(long, visible_alias = "learning-rate", value_name = "RATE", value_parser = learning_rate)]
    lr: Option<f64>,
    /// Directory of the new run [default: runs/NAME, where NAME is the name of the last configuration file, or grpo
    /// without a configuration file].
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Initial weights: a run, a checkpoint, a Hugging Face directory or a GGUF file; alias for train.init.
    #[arg(long, value_name = "MODEL")]
    init: Option<PathBuf>,
    /// Resume a run: its directory, or its name under runs/. Changes made with flags are stored in its config.toml if a
    /// step is left. Of the keys that affect results, only the number of steps, the learning rate and its schedule can
    /// change. Prompts with other contents are rejected.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "run", "init", "task"])]
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
    cache: ExactCacheFlags,
}

/// Checks that a run is one of this command.
fn require_grpo_run(run: &RunDir) -> Result<(), CliError> {
    let stored = RunConfig::load(&[Layer::File(run.config())]);
    if !stored.is_ok_and(|stored| stored.grpo.is_none()) {
        return Ok(());
    }
    let (path, word) = (run.path().display(), shell_word(run.path()));
    Err(CliError::new(Exit::Usage, format_args!("{path} is a run of xtrain train")).hint(format_args!(
        "to resume it: xtrain train --resume {word}; to train its weights with rewards: xtrain grpo --init {word}"
    )))
}

/// Trains with rewards.
///
/// # Errors
/// See [`super::Exit`].
pub(super) fn run(args: &GrpoArgs, comm: &Arc<dyn Communicator>) -> Result<(), CliError> {
    let layers = args.config_layers();
    let (run, old, mut resolved) = match &args.resume {
        Some(name) => {
            let run = resumable::open(name, "grpo")?;
            require_grpo_run(&run)?;
            let ResumedConfig { old, new } = resumed_config(&run, &layers)?;
            (Some(run), Some(old.config), new)
        }
        None => (None, None, Resolved::load(&layers)?),
    };
    reward_dir::clear_if_older(&mut resolved.config, &layers)?;
    let section = section(&resolved.config)?.clone();
    let task = task(&section)?;
    check_weights(&section)?;
    check_programs(&section)?;
    if comm.rank() == 0 {
        without_effect::notes(&layers, &resolved.config, &section)?
            .iter()
            .for_each(|note| eprintln!("{note}"));
    }
    if args.dry_run {
        // A run stores the sizes of its model, and does not need the initial one after its first checkpoint.
        if run.is_none() {
            check_unused(&layers, &resolved.config)?.iter().for_each(|note| eprintln!("{note}"));
            resolved.config = with_sizes_of_init(resolved.config)?;
        }
        let prompt = longest_prompt(&section, task.as_deref());
        return dry_run::print_grpo(&resolved, prompt, comm.size());
    }
    let device = args.common.open()?;
    let started = run.as_ref().is_some_and(|run| has_checkpoint(run.path()));
    check_files(&resolved.config, &section, task.is_some(), started)?;
    let mut note = None;
    if run.is_none() {
        note = check_unused(&layers, &resolved.config)?;
        resolved.config = with_sizes_of_init(resolved.config)?;
    }
    make_absolute(&mut resolved.config)?;
    resolved.config.grpo.as_mut().map_or(Ok(()), constraint::store_schema)?;
    let text = resolved.to_toml();
    let config = resolved.config;
    let section = checks::section(&config)?.clone();
    if !started {
        check_inputs(&config, &section, task.as_deref())?;
    }
    require_grpo(&config, longest_prompt(&section, task.as_deref()), &device, comm.size())?;
    require_division(&config, &**comm)?;
    Identity::of_config(&config).require_equal(&**comm)?;
    let engine = args.cache.engine();
    let (task, common) = (task.as_deref(), &args.common);
    let (config, section, device) = (&config, &section, &device);
    let changes = old.as_ref().map(|old| Changes { old, text: &text });
    let setup = Setup { config, changes, section, task, common, device, engine, comm };
    let interrupt = Interrupt::install()?;
    note.iter().for_each(|note| eprintln!("{note}"));
    if comm.rank() > 0 {
        return setup.follow(run, &args.new_run(), &interrupt);
    }
    let (run, is_new) = match run {
        Some(run) => (run, false),
        None => (RunDir::create(&args.new_run(), &text)?, true),
    };
    if faults::on(Fault::SessionBeforeLock) {
        logs::session(&run, device, 0, || Ok(()))?;
    }
    // A refused resume starts no reward program and writes nothing in the run of another process.
    let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), section.keep)?;
    if !started {
        resumable::require_no_checkpoint(&run, "grpo")?;
    }
    let rewards = (!started).then(|| setup.rewards(&run)).transpose();
    if is_new && rewards.is_err() {
        let _ = fs::remove_dir_all(run.path());
    }
    let rewards = rewards?;
    if !is_new && !started {
        run.write_config(&text)?;
    }
    comm.barrier()?;
    let mut ready = setup.open(&run, &interrupt)?;
    checkpoints.exclude(&ready.refused);
    let rewards = match rewards {
        Some(rewards) => rewards,
        None if ready.trainer.step_number() >= setup.section.steps as u64 => Vec::new(),
        None => setup.rewards(&run)?,
    };
    setup.train(&run, &mut ready, rewards, &checkpoints, interrupt)
}

/// The length of the longest prompt in tokens, or an upper bound: of a task its bytes and a BOS token.
fn longest_prompt(section: &GrpoSection, task: Option<&(dyn Task + Send + Sync)>) -> usize {
    let prompts = task.iter().flat_map(|task| task.prompts(PromptSet::HeldOut));
    prompts.map(|prompt| prompt.len() + 1).max().unwrap_or(section.max_prompt_length)
}

impl GrpoArgs {
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
        if let Some(rate) = self.lr {
            flag("--lr", "grpo.learning_rate", Value::Float(rate));
        }
        layers.extend(self.steps.map(|steps| Layer::count("--steps", "grpo.steps", steps)));
        layers.extend(train_command::flag_layers(self.seed.seed, self.common.dtype));
        layers
    }

    fn new_run(&self) -> PathBuf {
        let stem = self.layers.config.last().and_then(|file| file.file_stem());
        self.run.clone().unwrap_or_else(|| Path::new("runs").join(stem.unwrap_or("grpo".as_ref())))
    }
}
