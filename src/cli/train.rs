//! `xtrain train`: a model from text.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use toml::Value;

use super::common::{CacheFlags, Common, Layers, Seed};
use super::interrupt::Interrupt;
use super::job::{self, Job};
use super::{CliError, Exit, dry_run, init, out, source};
use crate::config::{Layer, Precision, RunConfig, Task, seed_value};
use crate::model::checkpoint::{CheckpointDir, RealFs};
use crate::model::store::{self, Resumed, RunState};
use crate::run::{self, DataRecord, RunDir};
use crate::training::{self, Reading};

/// Flags of `xtrain train`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Ctrl-C finishes the step and saves (exit code 130); --resume goes on to the bytes that the run would have \
had. It refuses data that is not what the run began with (exit code 65), by the digests in RUN/data.json, \
and says so when the run is complete.

The task `sft` learns what the assistant says in JSONL rows with `messages`, or the `completion` after a \
`prompt`, and the token that ends it. Whole conversations fill the windows, and none sees another; one that is \
longer than train.context keeps its beginning, which is counted and said. data.packing=documents fills windows \
with whole documents of text; a longer one is split.

Examples:
  xtrain train -c configs/shakespeare.toml --data examples/data/tinyshakespeare.txt
  xtrain train -c configs/shakespeare.toml --set train.steps=500 --set train.schedule=wsd --dry-run
  xtrain train --init Qwen3-0.6B --data book.txt --run runs/book --set train.context=512
  xtrain train --task sft --init Qwen3-0.6B --data chat.jsonl --run runs/chat --set train.context=1024
  xtrain train --resume runs/shakespeare")]
pub struct TrainArgs {
    /// Text, JSONL or packed tokens to train on; stands for data.files.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub data: Vec<PathBuf>,
    /// What is learnt; stands for train.task.
    #[arg(long, value_name = "TASK")]
    pub task: Option<Task>,
    /// Directory of the new run [default: runs/ and the name of the last configuration file].
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Begins with the weights of a model instead of random ones: a run, a checkpoint, a Hugging Face
    /// directory or a GGUF file. Its tokenizer is the default of data.tokenizer; one without a tokenizer is
    /// refused unless data.tokenizer is set. The ids that end its texts are kept.
    #[arg(long, value_name = "MODEL")]
    pub init: Option<PathBuf>,
    /// Goes on with a run: its directory, or its name under runs/. What --set changes is kept in its
    /// config.toml.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "run", "data", "init", "task"])]
    pub resume: Option<PathBuf>,
    /// Keeps the input of each layer alone and computes the rest again: stands for train.recompute=true.
    #[arg(long)]
    pub recompute: bool,
    /// Prints the resolved configuration and what it takes, and ends.
    #[arg(long)]
    pub dry_run: bool,
    /// The configuration.
    #[command(flatten)]
    pub layers: Layers,
    /// The seed.
    #[command(flatten)]
    pub seed: Seed,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
    /// How keys and values are kept.
    #[command(flatten)]
    pub cache: CacheFlags,
}

/// Trains, or says what would be trained.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &TrainArgs) -> Result<(), CliError> {
    if args.dry_run {
        return dry_run::run(args);
    }
    let device = args.common.open()?;
    let interrupt = Interrupt::install()?;
    if let Some(name) = &args.resume {
        let run = RunDir::open(name)?;
        let (was, config) = args.resumed(&run)?;
        let mut source = source::open(&config)?;
        check_data(&run, &source::record(&config, &source)?)?;
        let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), config.train.keep)?;
        let (compute, optim) = (training::compute(config.train.dtype), training::optim_config(&config));
        let Resumed { trainer, run_state: standing, eos, path, refused } =
            store::resume(run.path(), compute, &device, optim, training::schedule(&config))?;
        source.tokenizer = source.tokenizer.with_eos_ids(&eos);
        refused.iter().for_each(|r| eprintln!("warning: {r}"));
        let (at, steps) = (trainer.step_number(), config.train.steps as u64);
        if at >= steps {
            return out::print(format!(
                "{0} is complete at step {at}; raise train.steps to go on: \
                 xtrain train --resume {0} --set train.steps={1}\n",
                run.path().display(),
                2 * at,
            ));
        }
        if config != was {
            run.write_config(&config)?;
        }
        eprintln!("resuming {} at step {at} of {steps}", run.path().display());
        let reading = Reading::new(&config, &source, standing.seed)?;
        let last_saved = Some(path);
        let mut job = Job { config, source, reading, checkpoints, run, trainer, standing, last_saved };
        return job::go(&mut job, interrupt, args.cache.engine());
    }
    let mut config = RunConfig::load(&args.config_layers())?;
    let begun = init::open(&mut config, &device)?;
    let mut source = source::open(&config)?;
    let trainer = match begun {
        Some(begun) => {
            source.tokenizer = source.tokenizer.with_eos_ids(&begun.eos);
            init::trainer(begun, &config, &source)?
        }
        None => training::begin(&config, source.tokenizer.vocab_size(), &device)?,
    };
    let reading = Reading::new(&config, &source, config.train.seed)?;
    let data = source::record(&config, &source)?;
    let run = RunDir::create(&args.new_run(), &config)?;
    run.write_data(&data)?;
    let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), config.train.keep)?;
    let standing = RunState { seed: config.train.seed, best: None };
    let mut job = Job { config, source, reading, checkpoints, run, trainer, standing, last_saved: None };
    job::go(&mut job, interrupt, args.cache.engine())
}

/// Refuses to go on with other data than the run began with.
fn check_data(run: &RunDir, found: &DataRecord) -> Result<(), CliError> {
    run.check_data(found).map_err(|error| match error {
        run::Error::Changed { .. } => CliError::from(error)
            .hint("bring back what the run began with, or begin a new run: the data decides every step"),
        run::Error::Missing { .. } => CliError::from(error)
            .hint("it says what the run was trained on; without it nothing can be promised: begin a new run"),
        _ => error.into(),
    })
}

/// Refuses what would make a resumed run another one: only its length, what it shows and what it keeps
/// may change.
fn same_run(was: &RunConfig, asked: &RunConfig) -> Result<(), CliError> {
    let mut allowed = was.clone();
    allowed.sample = asked.sample.clone();
    let (to, from) = (&mut allowed.train, &asked.train);
    (to.steps, to.keep, to.save_every) = (from.steps, from.keep, from.save_every);
    (to.micro_batch, to.recompute) = (from.micro_batch, from.recompute);
    (to.eval_every, to.eval_tokens, to.sample_every) = (from.eval_every, from.eval_tokens, from.sample_every);
    if allowed == *asked {
        return Ok(());
    }
    Err(CliError::new(Exit::Usage, "--resume goes on with the run as it was configured").hint(
        "only train.steps, train.micro_batch, train.recompute, train.keep, train.save_every, \
         train.eval_every, train.eval_tokens, train.sample_every and [sample] may be set; begin a new run \
         for anything else",
    ))
}

impl TrainArgs {
    /// The configuration that a run had, and the one that it goes on with.
    pub(super) fn resumed(&self, run: &RunDir) -> Result<(RunConfig, RunConfig), CliError> {
        let mut layers = vec![Layer::File(run.config())];
        layers.extend(self.config_layers());
        let (was, config) = (RunConfig::load(&layers[..1])?, RunConfig::load(&layers)?);
        same_run(&was, &config)?;
        Ok((was, config))
    }

    /// The configuration's layers: files, `--set`, and the flags that stand for a key.
    pub fn config_layers(&self) -> Vec<Layer> {
        let mut layers: Vec<Layer> = self.init.iter().filter_map(|model| init::tokenizer(model)).collect();
        layers.extend(self.layers.layers());
        if let Some(model) = &self.init {
            let value = Value::String(model.to_string_lossy().into_owned());
            layers.push(Layer::Flag { flag: "--init", key: "train.init", value });
        }
        if let Some(name) = self.task.and_then(|task| task.to_possible_value()) {
            let value = Value::String(name.get_name().to_string());
            layers.push(Layer::Flag { flag: "--task", key: "train.task", value });
        }
        if !self.data.is_empty() {
            let files = self.data.iter().map(|file| Value::String(file.to_string_lossy().into_owned()));
            layers.push(Layer::Flag {
                flag: "--data",
                key: "data.files",
                value: Value::Array(files.collect()),
            });
        }
        if self.recompute {
            let value = Value::Boolean(true);
            layers.push(Layer::Flag { flag: "--recompute", key: "train.recompute", value });
        }
        layers.extend(flag_layers(self.seed.seed, self.common.dtype));
        layers
    }

    /// The directory of a new run: `--run`, or `runs/` and the stem of the last configuration file.
    pub fn new_run(&self) -> PathBuf {
        let stem = self.layers.config.last().and_then(|file| file.file_stem());
        let named = || Path::new("runs").join(stem.unwrap_or("train".as_ref()));
        self.run.clone().unwrap_or_else(named)
    }
}

/// The flags `--seed` and `--dtype` as layers.
pub(super) fn flag_layers(seed: Option<u64>, dtype: Option<Precision>) -> Vec<Layer> {
    let mut layers = Vec::new();
    if let Some(seed) = seed {
        layers.push(Layer::Flag { flag: "--seed", key: "train.seed", value: seed_value(seed) });
    }
    if let Some(name) = dtype.and_then(|dtype| dtype.to_possible_value()) {
        let value = Value::String(name.get_name().to_string());
        layers.push(Layer::Flag { flag: "--dtype", key: "train.dtype", value });
    }
    layers
}
