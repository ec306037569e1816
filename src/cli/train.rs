//! `xtrain train`: trains or fine-tunes a model.
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use toml::Value;

use super::cache_flags::ExactCacheFlags;
use super::common::{Common, Layers, Seed, count, number};
use super::epochs::Epochs;
use super::exit::shell_word;
use super::follower::Follower;
use super::identity::{Identity, require_division};
use super::interrupt::Interrupt;
use super::job::{self, Job, Restored};
use super::launch::require_single;
use super::memory_check::require_training;
use super::paths::make_absolute;
use super::resumed::{ResumedConfig, resumed};
use super::{CliError, Exit, dry_run, gpu_peers, init, lr_find, preflight, resumable, source};
use crate::config::{self, Layer, Precision, Resolved, RunConfig, TaskKind, TrainSection, seed_value};
use crate::model::Trainer;
use crate::model::checkpoint::{CheckpointDir, RealFs, step_path};
use crate::model::comm::{Communicator, SingleProcess};
use crate::model::store::RunState;
use crate::run::{DataRecord, RunDir, has_checkpoint};
use crate::tensor::Device;
use crate::tensor::faults::{self, Fault};
use crate::training::{self, DataLoader, Source};

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Ctrl-C finishes the current step, saves a checkpoint and exits with code 130. SIGTERM (143) and a closed terminal \
(129, on Linux) do the same. --resume continues the run; the result is bit-identical to an uninterrupted run. A resume with different data is rejected (exit code 65), based on the \
digests in RUN/data.json, and so is a config.toml that differs from what the checkpoint recorded. --set and its \
aliases change the number of steps, the learning rate and its schedule, intervals, memory use and samples.

--objective sft computes the loss on the assistant turns of JSONL lines with `messages`, or on the `completion` of a \
`prompt`, including the token that ends the turn. Windows hold whole conversations, which do not attend to each \
other. Conversations longer than train.context are truncated, and their number is reported. With \
data.packing=documents, windows hold whole text documents; longer documents are split.

Examples:
  xtrain train -c configs/shakespeare.toml --data examples/data/tinyshakespeare.txt
  xtrain train --data train.txt --val-data val.txt --run runs/book
  xtrain train --data book.txt --run runs/book --steps 500 --lr 2e-3 --batch 8 \\
      --tokenizer tokenizer.json
  xtrain train -c configs/shakespeare.toml --set train.steps=500 --set train.schedule=wsd --dry-run
  xtrain train -c configs/shakespeare.toml --data book.txt --lr-find
  xtrain train -c configs/shakespeare.toml --data book.txt \\
      --set train.keep_best=true --set train.patience=5
  xtrain train --init Qwen3-0.6B --data book.txt --run runs/more --lr 1e-5 --set train.context=512
  xtrain train --objective sft --init Qwen3-0.6B --data chat.jsonl --run runs/chat \\
      --lr 1e-5 --set train.context=1024
  xtrain train --resume runs/shakespeare
  xtrain train --resume runs/shakespeare --set train.learning_rate=5e-4")]
pub(super) struct TrainArgs {
    /// One or more text, JSONL or packed token files to train on; alias for data.files.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    data: Vec<PathBuf>,
    /// Text, JSONL or packed token files for validation; alias for data.val_files [default: the end of --data].
    #[arg(long, value_name = "FILE", num_args = 1..)]
    val_data: Vec<PathBuf>,
    /// Training objective; alias for train.task.
    #[arg(long, alias = "task", value_name = "OBJECTIVE")]
    pub(super) objective: Option<TaskKind>,
    /// Number of optimizer steps; alias for train.steps.
    #[arg(long, value_name = "N", value_parser = count)]
    steps: Option<NonZeroUsize>,
    /// Number of epochs, for example 3 or 0.5. Sets train.steps to EPOCHS x windows of the training data / train.batch,
    /// rounded up. With train.order=random, the windows are drawn with replacement. With --resume, epochs are counted
    /// from the first step.
    #[arg(long, value_name = "EPOCHS", value_parser = Epochs::parse, conflicts_with_all = ["steps", "lr_find"])]
    epochs: Option<Epochs>,
    /// Peak learning rate; alias for train.learning_rate.
    #[arg(long, visible_alias = "learning-rate", value_name = "RATE", value_parser = learning_rate)]
    lr: Option<f64>,
    /// Windows per step; alias for train.batch.
    #[arg(long, visible_alias = "batch-size", value_name = "N", value_parser = count)]
    batch: Option<NonZeroUsize>,
    /// bytes, or the path of a tokenizer.json or of a model; alias for data.tokenizer.
    #[arg(long, value_name = "TOKENIZER")]
    tokenizer: Option<String>,
    /// Directory of the new run [default: runs/NAME, where NAME is the name of the last configuration file, or train
    /// without a configuration file].
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Initial weights: a run, a checkpoint, a Hugging Face directory or a GGUF file [default: random weights]. Its
    /// tokenizer is the default of data.tokenizer, which is required if the model has no tokenizer. Its end-of-text
    /// ids are kept.
    #[arg(long, value_name = "MODEL")]
    init: Option<PathBuf>,
    /// Resume a run: its directory, or its name under runs/. Changes made with flags are stored in its config.toml if a step
    /// is left.
    /// --data and --val-data name its data at another place.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "run", "init", "objective"])]
    resume: Option<PathBuf>,
    /// Recompute activations in the backward pass to save memory; alias for train.gradient_checkpointing=true.
    #[arg(long, alias = "recompute")]
    pub(super) gradient_checkpointing: bool,
    /// Print the resolved configuration and the memory estimate, and exit.
    #[arg(long)]
    dry_run: bool,
    /// Train a few steps with a learning rate that grows from 1e-6 to 1, plot the losses, suggest a rate, and exit. No
    /// run is written [default number of steps: 100].
    #[arg(long, value_name = "STEPS", num_args = 0..=1, require_equals = true, default_missing_value = "100",
        value_parser = lr_find::steps, conflicts_with_all = ["resume", "dry_run", "run"])]
    lr_find: Option<u16>,
    #[command(flatten)]
    layers: Layers,
    #[command(flatten)]
    seed: Seed,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    cache: ExactCacheFlags,
}

/// The keys that a resume may change.
const MAY_CHANGE: [&str; 18] = [
    "train.steps",
    "train.learning_rate",
    "train.initial_learning_rate",
    "train.min_learning_rate",
    "train.schedule",
    "train.warmup",
    "train.decay",
    "train.micro_batch",
    "train.gradient_checkpointing",
    "train.keep",
    "train.keep_best",
    "train.save_every",
    "train.eval_every",
    "train.eval_tokens",
    "train.patience",
    "train.sample_every",
    "train.stats_every",
    "sample.",
];

pub(super) fn run(args: &TrainArgs, comm: &Arc<dyn Communicator>) -> Result<(), CliError> {
    if args.dry_run {
        let resolved = args.dry_run_config()?;
        if args.resume.is_none() {
            dry_run::warn_of_missing(&resolved.config.data);
        }
        return dry_run::print(&resolved, comm.size());
    }
    if args.lr_find.is_some() {
        require_single(&**comm)?;
    }
    let (device, interrupt) = (args.common.open()?, Interrupt::install()?);
    let on = On { device: &device, interrupt, comm };
    let Some(name) = &args.resume else {
        let config = args.new_config()?;
        return args.start(config, None, on);
    };
    let run = resumable::open(name, "train")?;
    let config = args.resumed(&run)?;
    if !has_checkpoint(run.path()) {
        eprintln!("starting {}: it has no checkpoint yet", run.path().display());
        return args.start(config.new, Some(run), on);
    }
    args.resume(config, run, on)
}

/// Where a run is computed.
struct On<'a> {
    device: &'a Device,
    interrupt: Interrupt,
    comm: &'a Arc<dyn Communicator>,
}

impl TrainArgs {
    /// Trains from the first step, in a new run directory or in that of a run without a checkpoint.
    fn start(
        &self,
        mut resolved: Resolved,
        run: Option<RunDir>,
        On { device, interrupt, comm }: On<'_>,
    ) -> Result<(), CliError> {
        if run.is_none() && self.lr_find.is_none() && comm.rank() == 0 {
            RunDir::require_new(&self.new_run())?;
        }
        let config = &mut resolved.config;
        init::describe(config)?;
        source::require_files(config)?;
        let tokenizer = source::tokenizer(&config.data.tokenizer)?;
        preflight::check(config, &tokenizer)?;
        require_training(config, tokenizer.vocab_size(), device, comm.size())?;
        let initial = init::open(config, device)?;
        make_absolute(config)?;
        let tokenizer = match &initial {
            Some(initial) => tokenizer.with_eos_ids(&initial.eos),
            None => tokenizer,
        };
        let source = source::open_with(config, tokenizer)?;
        let loader = source::loader(config, &source, config.train.seed)?;
        if let Some(epochs) = self.epochs {
            resolved = epochs.of_new(&resolved, &loader, &self.config_layers())?;
            resolved.config.require_validation()?;
        }
        let config = &resolved.config;
        preflight::warn_of_steps(config);
        let trainer = match initial {
            Some(initial) => init::trainer(initial, config, &source)?,
            None => training::new_trainer(config, source.tokenizer.vocab_size(), device)?,
        };
        if let Some(steps) = self.lr_find {
            return lr_find::run(config, (&loader, &source), trainer, steps.into(), &interrupt);
        }
        let data = source::record(config, &source)?;
        require_equal(config, &data, &trainer, comm)?;
        let processes = gpu_peers::connect(device, self.common.threads, comm)?;
        let (text, config) = (resolved.to_toml(), resolved.config);
        let state = RunState { seed: config.train.seed, best: None };
        let parts = Follower { config, source, loader, trainer, state };
        if comm.rank() > 0 {
            return parts.run(&processes);
        }
        let (run, is_new) = match run {
            Some(run) => (run, false),
            None => (RunDir::create(&self.new_run(), &text)?, true),
        };
        if faults::on(Fault::ConfigBeforeLock) {
            run.write_config(&text)?;
        }
        // Nothing is written into the run of another process.
        let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), parts.config.train.keep)?;
        resumable::require_no_checkpoint(&run, "train")?;
        if !is_new {
            run.write_config(&text)?;
        }
        run.write_data(&data)?;
        let mut job = Job { processes, ..Job::new(parts, run, checkpoints, None) };
        job::run_training(&mut job, interrupt, self.cache.engine())
    }

    /// Continues a run from its newest checkpoint.
    fn resume(
        &self,
        config: ResumedConfig,
        run: RunDir,
        On { device, interrupt, comm }: On<'_>,
    ) -> Result<(), CliError> {
        let ResumedConfig { old: before, new: mut resolved } = config;
        make_absolute(&mut resolved.config)?;
        let mut config = resolved.config.clone();
        let (source, data) = job::open_data(&run, &mut config, &**comm)?;
        if let Some(epochs) = self.epochs {
            resolved = self.with_epochs(epochs, &before, (&config, &source))?;
            make_absolute(&mut resolved.config)?;
            config.train = resolved.config.train.clone();
        }
        let old = before.config;
        let (text, steps) = (resolved.to_toml(), config.train.steps as u64);
        let Restored { mut parts, path, checkpoints } = job::restore(&run, config, source, device, &**comm)?;
        let evaluations = |config: &RunConfig| (config.train.eval_every, config.train.eval_tokens);
        if evaluations(&old) != evaluations(&parts.config) {
            if !faults::on(Fault::LowestLossOfOtherEvaluations) {
                parts.state.best = None;
            }
            source::require_validation_target(&parts.config, &parts.source, &parts.loader)?;
        }
        let kept = run.path().join("best");
        let is_kept = |(_, step): (f64, u64)| step_path(&kept, step).is_dir();
        let starts = parts.config.train.keep_best && !old.train.keep_best;
        if starts && has_checkpoint(&kept) && !parts.state.best.is_some_and(is_kept) {
            let message = format!("{}: expected no weights of earlier evaluations", kept.display());
            return Err(CliError::new(Exit::Usage, message)
                .hint("train.keep_best would remove them; move the directory to another place first"));
        }
        require_equal(&parts.config, &data, &parts.trainer, comm)?;
        let step = parts.trainer.step_number();
        let before = old.train.steps as u64;
        resumable::require_not_passed(&run, step, (before, steps))?;
        let stores_nothing = step >= before || faults::on(Fault::EndOfRunNotStored);
        if step >= steps && stores_nothing {
            let next = resumable::more_steps(&run, "train", step);
            return resumable::print_complete(&run, step, &config::differing(&old, &parts.config), next);
        }
        preflight::warn_of_short_decay(&parts.config);
        let processes = gpu_peers::connect(device, self.common.threads, comm)?;
        let Some(checkpoints) = checkpoints else { return parts.run(&processes) };
        let mut job = Job { processes, ..Job::new(parts, run, checkpoints, Some(path)) };
        let samples = |config: &RunConfig| (config.sample.clone(), config.train.sample_every > 0);
        if job.config.train.sample_every > 0 && samples(&old) != samples(&job.config) {
            preflight::check_prompt(&job.config, &job.source.tokenizer)?;
        }
        job.record_changes(&old, &text)?;
        eprintln!("resuming {} at step {step} of {steps}", job.run.path().display());
        job::run_training(&mut job, interrupt, self.cache.engine())
    }

    /// The configuration of a resume with `--epochs`. `before`: that of the run; `data`: its data, with its configuration.
    fn with_epochs(
        &self,
        epochs: Epochs,
        before: &Resolved,
        (config, source): (&RunConfig, &Source),
    ) -> Result<Resolved, CliError> {
        // the number of windows does not depend on the seed
        let loader = DataLoader::new(config, source, 0)?;
        let mut layers = self.config_layers();
        layers.push(epochs.layer(&loader, config.train.batch)?);
        let resolved = before.changed(&layers)?;
        if before.config.require_validation().is_ok() {
            resolved.config.require_validation()?;
        }
        Ok(resolved)
    }

    /// The configuration that `--dry-run` prints, from files and headers, and with `--epochs` from the data.
    fn dry_run_config(&self) -> Result<Resolved, CliError> {
        let mut resolved = match &self.resume {
            Some(name) => {
                let run = resumable::open(name, "train")?;
                let ResumedConfig { old, new } = self.resumed(&run)?;
                if let Some(epochs) = self.epochs.filter(|_| has_checkpoint(run.path())) {
                    let mut config = new.config;
                    let (source, _) = job::open_data(&run, &mut config, &SingleProcess)?;
                    return self.with_epochs(epochs, &old, (&config, &source));
                }
                new
            }
            None => self.new_config()?,
        };
        if self.resume.is_none() {
            init::describe(&mut resolved.config)?;
        }
        let Some(epochs) = self.epochs else { return Ok(resolved) };
        let source = source::open(&resolved.config)?;
        let loader = source::loader(&resolved.config, &source, resolved.config.train.seed)?;
        let resolved = epochs.of_new(&resolved, &loader, &self.config_layers())?;
        resolved.config.require_validation()?;
        Ok(resolved)
    }

    /// The configuration of a new run.
    fn new_config(&self) -> Result<Resolved, CliError> {
        let mut layers = self.config_layers();
        layers.extend(self.epochs.map(|_| Epochs::unknown()));
        require_own_keys(&layers)?;
        let mut resolved = Resolved::load(&layers)?;
        let init = &resolved.config.train.init;
        if self.init.is_none() && !init.is_empty() {
            layers.splice(..0, init::tokenizer(Path::new(init)));
            resolved = Resolved::load(&layers)?;
        }
        if let Some(recorded) = source::recorded_tokenizer(&resolved.config, &layers)? {
            layers.insert(0, recorded);
            resolved = Resolved::load(&layers)?;
        }
        resolved.config.require_validation()?;
        Ok(resolved)
    }

    /// The configuration of a resumed run.
    fn resumed(&self, run: &RunDir) -> Result<ResumedConfig, CliError> {
        let stored = RunConfig::load(&[Layer::File(run.config())]);
        let (path, word) = (run.path().display(), shell_word(run.path()));
        if stored.as_ref().is_ok_and(RunConfig::is_grpo) {
            return Err(CliError::new(Exit::Usage, format_args!("{path} is a run of xtrain grpo"))
                .hint(format_args!("to resume it: xtrain grpo --resume {word}")));
        }
        if !self.val_data.is_empty() && stored.is_ok_and(|stored| stored.data.val_files.is_empty()) {
            let message =
                format_args!("--val-data: {path} has no data.val_files, and a resume cannot add any");
            return Err(CliError::new(Exit::Usage, message)
                .hint(format_args!("to evaluate a file: xtrain eval {word} --data FILE")));
        }
        let moved = self.data_files().map(|(_, key, _)| key);
        let may_change: Vec<&str> = MAY_CHANGE.into_iter().chain(moved).collect();
        let mut layers = self.config_layers();
        layers.extend(self.epochs.map(|_| Epochs::unknown()));
        require_own_keys(&layers)?;
        let config = resumed(run, &layers, &may_change)?;
        if config.old.config.require_validation().is_ok() {
            config.new.config.require_validation()?;
        }
        if has_checkpoint(run.path()) {
            require_comparable(&config.old.config.train, &config.new.config.train)?;
        }
        Ok(config)
    }

    /// The configuration layers: the tokenizer of `--init`, files, `--set`, flags that are aliases for keys.
    pub(super) fn config_layers(&self) -> Vec<Layer> {
        let mut layers: Vec<Layer> = self.init.iter().filter_map(|model| init::tokenizer(model)).collect();
        layers.extend(self.layers.layers());
        if let Some(model) = &self.init {
            layers.push(Layer::string("--init", "train.init", model.to_string_lossy()));
        }
        if let Some(name) = self.objective.and_then(|objective| objective.to_possible_value()) {
            layers.push(Layer::string("--objective", "train.task", name.get_name()));
        }
        let sizes = [("--steps", "train.steps", self.steps), ("--batch", "train.batch", self.batch)];
        for (flag, key, n) in sizes {
            layers.extend(n.map(|n| Layer::count(flag, key, n)));
        }
        if let Some(rate) = self.lr {
            layers.push(Layer::Flag { flag: "--lr", key: "train.learning_rate", value: Value::Float(rate) });
        }
        if let Some(tokenizer) = &self.tokenizer {
            layers.push(Layer::string("--tokenizer", "data.tokenizer", tokenizer));
        }
        for (flag, key, files) in self.data_files() {
            let files = files.iter().map(|file| Value::String(file.to_string_lossy().into_owned()));
            layers.push(Layer::Flag { flag, key, value: Value::Array(files.collect()) });
        }
        if self.gradient_checkpointing {
            let (flag, key) = ("--gradient-checkpointing", "train.gradient_checkpointing");
            layers.push(Layer::Flag { flag, key, value: Value::Boolean(true) });
        }
        layers.extend(flag_layers(self.seed.seed, self.common.dtype));
        layers
    }

    /// The flags that name data files, with their keys and values.
    fn data_files(&self) -> impl Iterator<Item = (&'static str, &'static str, &Vec<PathBuf>)> {
        let flags = [("--data", "data.files", &self.data), ("--val-data", "data.val_files", &self.val_data)];
        flags.into_iter().filter(|(.., files)| !files.is_empty())
    }

    /// The directory of a new run: `--run`, or `runs/NAME`, where NAME is the stem of the last configuration file.
    pub(super) fn new_run(&self) -> PathBuf {
        let stem = self.layers.config.last().and_then(|file| file.file_stem());
        let named = || Path::new("runs").join(stem.unwrap_or("train".as_ref()));
        self.run.clone().unwrap_or_else(named)
    }
}

/// Checks that no `--set` gives a key of `[grpo]`, which has no effect. A file may have the section, for `xtrain grpo`.
fn require_own_keys(layers: &[Layer]) -> Result<(), CliError> {
    for layer in layers.iter().filter(|layer| matches!(layer, Layer::Set(_))) {
        if let Some((key, value)) = layer.values()?.into_iter().find(|(key, _)| key.starts_with("grpo.")) {
            let message = format!("`{key}` = {value}: expected a key of xtrain train");
            return Err(CliError::new(Exit::Usage, message).hint("[grpo] has the keys of xtrain grpo"));
        }
    }
    Ok(())
}

/// Checks that all processes would train the same run, and that they can divide it.
fn require_equal(
    config: &RunConfig,
    data: &DataRecord,
    trainer: &Trainer,
    comm: &Arc<dyn Communicator>,
) -> Result<(), CliError> {
    require_division(config, &**comm)?;
    if comm.size() == 1 {
        return Ok(());
    }
    Identity::of_run(config, data, trainer)?.require_equal(&**comm)
}

/// Checks that validation losses before and after a resume can be compared, if the run depends on the lowest one:
/// `train.patience` counts evaluations of one interval, and both keys compare losses on the same tokens.
fn require_comparable(old: &TrainSection, new: &TrainSection) -> Result<(), CliError> {
    let key = match (old.eval_every == new.eval_every, old.eval_tokens == new.eval_tokens) {
        (false, _) => "train.eval_every",
        (true, false) => "train.eval_tokens",
        (true, true) => return Ok(()),
    };
    if new.patience == 0 && !new.keep_best {
        return Ok(());
    }
    let message = format!("--resume cannot change {key} of a run with train.patience or train.keep_best");
    Err(CliError::new(Exit::Usage, message)
        .hint("the lowest validation loss so far belongs to the old value; to change it, also --set train.patience=0 \
               --set train.keep_best=false"))
}

pub(super) fn learning_rate(text: &str) -> Result<f64, String> {
    number(text, |&rate| rate > 0.0 && f64::is_finite(rate), "expected a number above 0")
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
