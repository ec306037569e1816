//! The gate of reinforcement learning: every step compares the trainer's log-probabilities with the sampler's, and the
//! weights, metrics and rollouts of a run do not depend on threads, micro-batches, caches or interruptions.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xtrain::config::{Layer, RunConfig, record};
use xtrain::decode::EngineOptions;
use xtrain::grpo::metrics::StepMetrics;
use xtrain::grpo::prompts::{PromptSource, text_prompt};
use xtrain::grpo::rollout::RolloutOptions;
use xtrain::grpo::score::Scorer;
use xtrain::grpo::{Error, Grpo, GrpoFiles, GrpoObserver, from_config, reference};
use xtrain::model::checkpoint::{CheckpointDir, RealFs};
use xtrain::model::comm::{Communicator, SingleProcess};
use xtrain::model::export::ExportSource;
use xtrain::model::tasks::{PromptSet, Sums, Task};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Model, Processes, Trainer, store};
use xtrain::rewards::{Reward, RewardError, RewardInput, RewardReply, RewardRow};
use xtrain::run::RunDir;
use xtrain::tensor::{Device, GpuPeers, Simd};
use xtrain::training::{self, End};

use crate::cli::Scratch;
use crate::difference;

pub(crate) mod constraint;
pub(crate) mod devices;
#[cfg(feature = "faults")]
pub(crate) mod faults;
pub(crate) mod files;
pub(crate) mod held_out;
pub(crate) mod input;
pub(crate) mod learning;
pub(crate) mod parts;
pub(crate) mod processes;
pub(crate) mod reference_updates;
pub(crate) mod replaced_groups;
pub(crate) mod reused_batch;
pub(crate) mod stop_texts;
pub(crate) mod token_counts;
pub(crate) mod zero_weights;

/// A batch that is used again, with filters and a reference model: kept sets, values of all completions, loss weights
/// that are computed during the pass, parts of groups.
const REUSED_BATCH: [&str; 6] = [
    "grpo.num_iterations=2",
    "grpo.steps_per_generation=2",
    "grpo.steps=8",
    "grpo.beta=0.05",
    "grpo.top_p=0.9",
    "grpo.prompt_sharing=3",
];

/// Names and bytes of the files of a run.
type Files = Vec<(String, Vec<u8>)>;

/// A reward between 0 and 1 that every completion has, from its tokens.
struct TokenSum([String; 1]);

impl Reward for TokenSum {
    fn names(&self) -> &[String] {
        &self.0
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        let reward = |input: &RewardInput<'_>| {
            let sum: u32 = input.completion_ids.iter().sum();
            let rewards = vec![Some(f64::from(sum % 7) / 7.0)];
            RewardRow { at: input.location(), reply: RewardReply::Rewards(rewards) }
        };
        Ok(batch.iter().map(reward).collect())
    }
}

/// How a run is computed. No file depends on device, engine and stops.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) device: Device,
    pub(crate) engine: EngineOptions,
    /// The run is stopped after these steps, or as soon as possible then, and resumed. 0: in the first passes, or
    /// without `grpo.preallocate` in the first evaluation.
    pub(crate) stops: Vec<u64>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) reward: fn() -> Box<dyn Reward>,
    /// Whether the GPUs of several processes are connected.
    pub(crate) connects_gpus: bool,
}

impl Setup {
    pub(crate) fn on(device: Device) -> Setup {
        Setup {
            device,
            engine: EngineOptions::default(),
            stops: Vec::new(),
            tokenizer: Tokenizer::byte(),
            reward: || Box::new(TokenSum(["sum".to_string()])),
            connects_gpus: false,
        }
    }

    pub(crate) fn threads(threads: usize) -> Setup {
        Setup::on(Device::cpu_with(threads, Simd::detect()))
    }
}

/// What a run compared.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Compared {
    pub(crate) tokens: f64,
    pub(crate) steps: u64,
    /// The largest difference between two log-probabilities.
    pub(crate) difference: f64,
    /// Values of verified groups.
    pub(crate) verified: u64,
}

/// Stops the run before a step and counts the comparisons.
struct Watch {
    stop: Option<u64>,
    compared: Compared,
}

impl GrpoObserver for Watch {
    fn generated(&mut self) -> bool {
        !self.stop()
    }

    fn step(&mut self, metrics: &StepMetrics) -> Result<(), Error> {
        self.compared.tokens += metrics.get("sampling/compared_tokens").unwrap_or(0.0);
        let difference = metrics.get("sampling/sampling_logp_difference/max").unwrap_or(0.0);
        self.compared.difference = self.compared.difference.max(difference);
        self.compared.steps = metrics.step;
        Ok(())
    }

    fn note(&mut self, text: &str) {
        let values = text.split_once(" values of a group").and_then(|(text, _)| text.rsplit(' ').next());
        self.compared.verified += values.map_or(0, |values| values.parse().expect("a number of values"));
    }

    fn stop(&mut self) -> bool {
        self.stop.is_some_and(|stop| self.compared.steps >= stop)
    }
}

/// A configuration of a small model.
pub(crate) fn config(keys: &[&str]) -> RunConfig {
    let base = [
        "model.dim=16",
        "model.n_layers=2",
        "model.n_heads=2",
        "model.n_kv_heads=1",
        "model.head_dim=8",
        "model.ffn_dim=24",
        "train.context=64",
        "grpo.task=sums",
        "grpo.steps=4",
        "grpo.prompts_per_step=4",
        "grpo.num_generations=4",
        "grpo.max_completion_length=7",
        "grpo.learning_rate=5e-3",
        "grpo.eval_every=2",
        "grpo.eval_limit=3",
        "grpo.eval_samples=2",
        "grpo.save_every=1",
        "grpo.verify_every=0",
    ];
    let layers = base.iter().chain(keys).map(|key| Layer::Set((*key).to_string()));
    RunConfig::load(&layers.collect::<Vec<_>>()).expect("a configuration")
}

/// Runs the loop in `dir` from random weights, with the interruptions of `setup`.
pub(crate) fn run(config: &RunConfig, setup: &Setup, dir: &Path) -> Result<Compared, Error> {
    let directory = RunDir::create(dir, &config.to_toml()).unwrap();
    let mut compared = Compared::default();
    for stop in setup.stops.iter().map(|&stop| Some(stop)).chain([None]) {
        compared = run_as(config, setup, &directory, (stop, compared), Arc::new(SingleProcess))?;
    }
    Ok(compared)
}

/// A part of [`run`] as one of several processes, of which the first one writes the run: from the steps that were
/// compared before to the stop.
pub(crate) fn run_as(
    config: &RunConfig,
    setup: &Setup,
    directory: &RunDir,
    (stop, compared): (Option<u64>, Compared),
    comm: Arc<dyn Communicator>,
) -> Result<Compared, Error> {
    let dir = directory.path();
    let is_first = comm.rank() == 0;
    let section = config.grpo.as_ref().expect("[grpo]");
    let (tokenizer, task, seed) = (setup.tokenizer.clone(), Sums::default(), config.train.seed);
    let (optim, schedule) = (from_config::optim_config(section), from_config::schedule(section));
    let (compute, cfg) =
        (training::compute(config.train.dtype), training::model_config(config, tokenizer.vocab_size()));
    let mut trainer = match compared.steps {
        0 => Trainer::new(Model::init(&cfg, compute, &setup.device, seed)?, optim, schedule)?,
        _ => store::resume(dir, compute, &setup.device, optim, schedule)?.trainer,
    };
    trainer.checkpointing = training::activation_checkpointing(config);
    trainer.shards = config.train.shards;
    let mut processes = Processes::new(Arc::clone(&comm));
    if setup.connects_gpus {
        let peers = GpuPeers::connect(&setup.device, &comm).map_err(xtrain::model::Error::from)?;
        processes.gpus = Some(Arc::new(peers));
    }
    let step = trainer.step_number();
    if is_first && section.beta > 0.0 && step == 0 {
        let source =
            ExportSource { model: &trainer.model, tokenizer: Some(&tokenizer), eos: tokenizer.eos_ids() };
        reference::create(directory, section, &source)?;
    }
    comm.barrier()?;
    let reference_model =
        (section.beta > 0.0).then(|| reference::open(directory, section, step, &setup.device)).transpose()?;
    let held_out = task.prompts(PromptSet::HeldOut).into_iter().take(section.eval_limit);
    let held_out: Vec<_> =
        held_out.map(|text| Ok(Arc::new(text_prompt(text, &tokenizer)?))).collect::<Result<_, Error>>()?;
    let open = || CheckpointDir::open(Arc::new(RealFs), dir, section.keep).unwrap();
    let checkpoints = is_first.then(open);
    let mut logs = is_first.then(|| directory.logs_from(step)).transpose()?;
    let reference_checkpoints = match is_first {
        true => reference::checkpoints(directory, section)?,
        false => None,
    };
    let record = record(config);
    let files = checkpoints.as_ref().zip(logs.as_mut()).map(|(checkpoints, (metrics, _))| GrpoFiles {
        run: directory,
        checkpoints,
        reference_checkpoints: reference_checkpoints.as_ref(),
        record: &record,
        metrics,
    });
    let rewards = if is_first { vec![(setup.reward)()] } else { Vec::new() };
    let mut watch = Watch { stop: stop.filter(|_| is_first), compared };
    let (prompts, mut scorer) =
        (PromptSource::task(&task, &tokenizer, seed), Scorer::new(rewards, section.reward_weights.clone()));
    let constraint = constraint::of(section, &tokenizer, cfg.vocab);
    let rollout = from_config::rollout_options(section, seed, setup.engine);
    let end = Grpo {
        reference: reference_model,
        held_out: &held_out,
        rollout: RolloutOptions { constraint, ..rollout },
        files,
        processes,
        ..Grpo::new(section, seed, &mut trainer, &tokenizer, &prompts, &mut scorer)
    }
    .run(&mut watch)?;
    assert_eq!(end == End::Done, stop.is_none());
    if stop == Some(0) {
        let metrics = std::fs::read(dir.join("metrics.jsonl")).unwrap();
        assert!(metrics.is_empty(), "gate grpo, seed 0: the first evaluation was not interrupted");
    }
    Ok(watch.compared)
}

/// The bytes of metrics, rollouts and weights of a run.
pub(crate) fn files(dir: &Path) -> Files {
    let mut all = vec![("metrics.jsonl".to_string(), std::fs::read(dir.join("metrics.jsonl")).unwrap())];
    for part in ["rollouts", "checkpoints", "reference"] {
        let mut paths: Vec<PathBuf> = walk(&dir.join(part));
        paths.sort();
        for path in paths {
            let name = path.strip_prefix(dir).unwrap().display().to_string();
            if name.ends_with(".jsonl") || name.ends_with(".safetensors") || name.ends_with(".bin") {
                all.push((name, std::fs::read(path).unwrap()));
            }
        }
    }
    all
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// Runs the configuration in a new directory; returns its files.
fn outcome(name: &str, config: &RunConfig, setup: &Setup) -> (Files, Compared) {
    let dir = Scratch::new(name);
    let compared = run(config, setup, &dir.0).unwrap();
    (files(&dir.0), compared)
}

/// The number of equal bytes, or the first file that differs.
fn compare(what: &str, want: &Files, got: &Files) -> Result<usize, String> {
    match difference::first_file(got, want) {
        Some(difference) => Err(format!("gate grpo, seed 0: {what}: {difference}")),
        None => Ok(want.iter().map(|file| file.1.len()).sum()),
    }
}

#[track_caller]
pub(crate) fn assert_equal(what: &str, want: &Files, got: &Files) {
    compare(what, want, got).unwrap_or_else(|difference| panic!("{difference}"));
}
