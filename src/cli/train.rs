//! `xtrain train`: trains or fine-tunes a model.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use toml::Value;

use super::common::{CacheFlags, Common, Layers, Seed};
use super::exit::shell_word;
use super::interrupt::Interrupt;
use super::job::{self, Job};
use super::{CliError, Exit, dry_run, init, out, source};
use crate::config::{Layer, Precision, RunConfig, TaskKind, seed_value};
use crate::model::checkpoint::{CheckpointDir, RealFs};
use crate::model::store::RunState;
use crate::run::{DataRecord, RunDir};
use crate::training::{self, DataLoader};

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Ctrl-C finishes the current step, saves a checkpoint and exits with code 130. --resume continues the run; the result \
is bit-identical to an uninterrupted run. A resume with different training data is rejected (exit code 65), based on \
the digests in RUN/data.json.

--task sft computes the loss on the assistant turns of JSONL rows with `messages`, or on the `completion` of a \
`prompt`, including the token that ends the turn. Windows hold whole conversations, which do not attend to each \
other. Conversations longer than train.context are truncated, and their number is reported. With \
data.packing=documents, windows hold whole text documents; longer documents are split.

Examples:
  xtrain train -c configs/shakespeare.toml --data examples/data/tinyshakespeare.txt
  xtrain train -c configs/shakespeare.toml --set train.steps=500 --set train.schedule=wsd --dry-run
  xtrain train --init Qwen3-0.6B --data book.txt --run runs/book --set train.context=512
  xtrain train --task sft --init Qwen3-0.6B --data chat.jsonl --run runs/chat --set train.context=1024
  xtrain train --resume runs/shakespeare")]
pub(super) struct TrainArgs {
    /// Text, JSONL or packed token files to train on; alias for data.files.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    data: Vec<PathBuf>,
    /// Training objective; alias for train.task.
    #[arg(long, value_name = "TASK")]
    task: Option<TaskKind>,
    /// Directory of the new run [default: runs/NAME, where NAME is the name of the last configuration file].
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Initial weights: a run, a checkpoint, a Hugging Face directory or a GGUF file [default: random weights]. Its
    /// tokenizer is the default of data.tokenizer, which is required if the model has no tokenizer. Its end-of-text
    /// ids are kept.
    #[arg(long, value_name = "MODEL")]
    init: Option<PathBuf>,
    /// Resume a run: its directory, or its name under runs/. Changes made with --set are stored in its config.toml.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "run", "data", "init", "task"])]
    resume: Option<PathBuf>,
    /// Recompute activations in the backward pass to save memory; alias for train.gradient_checkpointing=true.
    #[arg(long, alias = "recompute")]
    pub(super) gradient_checkpointing: bool,
    /// Print the resolved configuration and the memory estimate, and exit.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    layers: Layers,
    #[command(flatten)]
    seed: Seed,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    cache: CacheFlags,
}

pub(super) fn run(args: &TrainArgs) -> Result<(), CliError> {
    if args.dry_run {
        return dry_run::print(&args.dry_run_config()?);
    }
    let device = args.common.open()?;
    let interrupt = Interrupt::install()?;
    if let Some(name) = &args.resume {
        let run = RunDir::open(name)?;
        let (old, config) = args.resumed(&run)?;
        let steps = config.train.steps as u64;
        let mut job = job::resume(run, config, &device)?;
        let step = job.trainer.step_number();
        if step >= steps {
            return out::print(format!(
                "{0} is complete at step {step}; to continue, increase train.steps: \
                 xtrain train --resume {0} --set train.steps={1}\n",
                job.run.path().display(),
                2 * step,
            ));
        }
        if job.config != old {
            job.run.write_config(&job.config)?;
        }
        eprintln!("resuming {} at step {step} of {steps}", job.run.path().display());
        return job::run_training(&mut job, interrupt, args.cache.engine());
    }
    let mut config = RunConfig::load(&args.config_layers())?;
    let initial = init::open(&mut config, &device)?;
    let mut source = source::open(&config)?;
    let trainer = match initial {
        Some(initial) => {
            source.tokenizer = source.tokenizer.with_eos_ids(&initial.eos);
            init::trainer(initial, &config, &source)?
        }
        None => training::new_trainer(&config, source.tokenizer.vocab_size(), &device)?,
    };
    let loader = DataLoader::new(&config, &source, config.train.seed)?;
    let data = DataRecord::of(&config, &source.tokens, &source.tokenizer)?;
    let run = RunDir::create(&args.new_run(), &config)?;
    run.write_data(&data)?;
    let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), config.train.keep)?;
    let state = RunState { seed: config.train.seed, best: None };
    let mut job = Job { config, source, loader, checkpoints, run, trainer, state, last_saved: None };
    job::run_training(&mut job, interrupt, args.cache.engine())
}

/// Rejects changes that would change the result of a resumed run. Its length, its intervals, its memory use and its
/// samples may change.
fn check_changes(old: &RunConfig, new: &RunConfig) -> Result<(), CliError> {
    let mut allowed = old.clone();
    allowed.sample = new.sample.clone();
    let (to, from) = (&mut allowed.train, &new.train);
    (to.steps, to.keep, to.save_every) = (from.steps, from.keep, from.save_every);
    (to.micro_batch, to.gradient_checkpointing) = (from.micro_batch, from.gradient_checkpointing);
    (to.eval_every, to.eval_tokens, to.sample_every) = (from.eval_every, from.eval_tokens, from.sample_every);
    if allowed == *new {
        return Ok(());
    }
    Err(CliError::new(Exit::Usage, "--resume cannot change this part of the configuration").hint(
        "only train.steps, train.micro_batch, train.gradient_checkpointing, train.keep, train.save_every, \
         train.eval_every, train.eval_tokens, train.sample_every and [sample] can change; start a new run for \
         other changes",
    ))
}

impl TrainArgs {
    /// The configuration that `--dry-run` prints, from files and headers only.
    fn dry_run_config(&self) -> Result<RunConfig, CliError> {
        if let Some(name) = &self.resume {
            return Ok(self.resumed(&RunDir::open(name)?)?.1);
        }
        let mut config = RunConfig::load(&self.config_layers())?;
        init::describe(&mut config)?;
        Ok(config)
    }

    /// The stored configuration of a run, and the one that it continues with.
    fn resumed(&self, run: &RunDir) -> Result<(RunConfig, RunConfig), CliError> {
        let layers = [vec![Layer::File(run.config())], self.config_layers()].concat();
        let (old, config) = (RunConfig::load(&layers[..1])?, RunConfig::load(&layers)?);
        if old.grpo.is_some() && old.data.files.is_empty() {
            let (path, word) = (run.path().display(), shell_word(run.path()));
            return Err(CliError::new(Exit::Usage, format_args!("{path} is a run of xtrain grpo"))
                .hint(format_args!("to resume it: xtrain grpo --resume {word}")));
        }
        check_changes(&old, &config)?;
        Ok((old, config))
    }

    /// The configuration layers: the tokenizer of `--init`, files, `--set`, flags that are aliases for keys.
    pub(super) fn config_layers(&self) -> Vec<Layer> {
        let mut layers: Vec<Layer> = self.init.iter().filter_map(|model| init::tokenizer(model)).collect();
        layers.extend(self.layers.layers());
        if let Some(model) = &self.init {
            layers.push(Layer::string("--init", "train.init", model.to_string_lossy()));
        }
        if let Some(name) = self.task.and_then(|task| task.to_possible_value()) {
            layers.push(Layer::string("--task", "train.task", name.get_name()));
        }
        if !self.data.is_empty() {
            let files = self.data.iter().map(|file| Value::String(file.to_string_lossy().into_owned()));
            let value = Value::Array(files.collect());
            layers.push(Layer::Flag { flag: "--data", key: "data.files", value });
        }
        if self.gradient_checkpointing {
            let (flag, key) = ("--gradient-checkpointing", "train.gradient_checkpointing");
            layers.push(Layer::Flag { flag, key, value: Value::Boolean(true) });
        }
        layers.extend(flag_layers(self.seed.seed, self.common.dtype));
        layers
    }

    /// The directory of a new run: `--run`, or `runs/NAME`, where NAME is the stem of the last configuration file.
    pub(super) fn new_run(&self) -> PathBuf {
        let stem = self.layers.config.last().and_then(|file| file.file_stem());
        let named = || Path::new("runs").join(stem.unwrap_or("train".as_ref()));
        self.run.clone().unwrap_or_else(named)
    }
}

/// The flags `--seed` and `--dtype` as configuration layers.
pub(super) fn flag_layers(seed: Option<u64>, dtype: Option<Precision>) -> Vec<Layer> {
    let mut layers = Vec::new();
    if let Some(seed) = seed {
        layers.push(Layer::Flag { flag: "--seed", key: "train.seed", value: seed_value(seed) });
    }
    if let Some(name) = dtype.and_then(|dtype| dtype.to_possible_value()) {
        layers.push(Layer::string("--dtype", "train.dtype", name.get_name()));
    }
    layers
}
