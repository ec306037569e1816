//! The gate of reinforcement learning: every step compares the trainer's log-probabilities with the sampler's, and the
//! weights, metrics and rollouts of a run do not depend on threads, micro-batches, caches or interruptions.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xtrain::config::{Layer, RunConfig};
use xtrain::decode::{EngineOptions, KvKind, PrefixCaching};
use xtrain::grpo::metrics::StepMetrics;
use xtrain::grpo::prompts::{PromptSource, text_prompt};
use xtrain::grpo::score::Scorer;
use xtrain::grpo::{Batch, Error, Grpo, GrpoObserver, GrpoPhase, from_config};
use xtrain::model::checkpoint::{CheckpointDir, CheckpointError, RealFs};
use xtrain::model::tasks::{PromptSet, Sums, Task};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Model, Trainer, store};
use xtrain::rewards::{Reward, RewardError, RewardInput, RewardRow};
use xtrain::run::RunDir;
use xtrain::tensor::Device;
use xtrain::training::{self, End};

/// A reward between 0 and 1 that every completion has, from its tokens.
struct TokenSum([String; 1]);

impl Reward for TokenSum {
    fn names(&self) -> &[String] {
        &self.0
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        let reward = |input: &RewardInput<'_>| {
            let sum: u32 = input.completion_ids.iter().sum();
            RewardRow { at: input.location(), rewards: vec![Some(f64::from(sum % 7) / 7.0)] }
        };
        Ok(batch.iter().map(reward).collect())
    }
}

/// How a run is computed. No file depends on it.
#[derive(Debug, Clone)]
struct Setup {
    device: Device,
    engine: EngineOptions,
    /// The run is stopped before these steps and resumed.
    stops: Vec<u64>,
}

impl Setup {
    fn threads(threads: usize) -> Setup {
        let device = Device::cpu_with(threads, xtrain::tensor::Simd::detect());
        Setup { device, engine: EngineOptions::default(), stops: Vec::new() }
    }
}

/// What a run compared.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Compared {
    tokens: f64,
    steps: u64,
}

/// Stops the run before a step and counts the comparisons.
struct Watch {
    stop: Option<u64>,
    compared: Compared,
}

impl GrpoObserver for Watch {
    fn enter(&mut self, _: GrpoPhase) -> Result<(), Error> {
        Ok(())
    }

    fn generated(&mut self, _: usize, _: usize) -> bool {
        true
    }

    fn step(&mut self, metrics: &StepMetrics) -> Result<(), Error> {
        self.compared.tokens += metrics.get("sampling/compared_tokens").unwrap_or(0.0);
        self.compared.steps = metrics.step;
        Ok(())
    }

    fn batch(&mut self, _: &Batch) {}

    fn saved(&mut self, _: PathBuf, _: Option<CheckpointError>) {}

    fn note(&mut self, _: &str) {}

    fn stop(&mut self) -> bool {
        self.stop.is_some_and(|stop| self.compared.steps >= stop)
    }
}

/// A configuration of a small model.
fn config(keys: &[&str]) -> RunConfig {
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
fn run(config: &RunConfig, setup: &Setup, dir: &Path) -> Result<Compared, Error> {
    let section = config.grpo.as_ref().expect("[grpo]");
    let (tokenizer, task, seed) = (Tokenizer::byte(), Sums::default(), config.train.seed);
    let (optim, schedule) = (from_config::optim_config(section), from_config::schedule(section));
    let (compute, cfg) =
        (training::compute(config.train.dtype), training::model_config(config, tokenizer.vocab_size()));
    let directory = RunDir::create(dir, config).unwrap();
    let mut compared = Compared::default();
    for stop in setup.stops.iter().map(|&stop| Some(stop)).chain([None]) {
        let mut trainer = match compared.steps {
            0 => Trainer::new(Model::init(&cfg, compute, &setup.device, seed)?, optim, schedule)?,
            _ => store::resume(dir, compute, &setup.device, optim, schedule)?.trainer,
        };
        let reference =
            (section.beta > 0.0).then(|| Model::init(&cfg, compute, &setup.device, seed)).transpose()?;
        let held_out = task.prompts(PromptSet::HeldOut).into_iter().take(section.eval_limit);
        let held_out: Vec<_> = held_out
            .map(|text| Ok(Arc::new(text_prompt(text, &tokenizer)?)))
            .collect::<Result<_, Error>>()?;
        let checkpoints = CheckpointDir::open(Arc::new(RealFs), dir, section.keep).unwrap();
        let (mut metrics, _timings) = directory.logs_from(trainer.step_number())?;
        let mut watch = Watch { stop, compared };
        let end = Grpo {
            section,
            seed,
            reference,
            reference_checkpoints: None,
            tokenizer: &tokenizer,
            prompts: &PromptSource::task(&task, &tokenizer, seed),
            held_out: &held_out,
            rollout: from_config::rollout_options(section, seed, setup.engine),
            advantages: from_config::advantage_options(section),
            updater: from_config::updater(section),
            scorer: &mut Scorer::new(vec![Box::new(TokenSum(["sum".to_string()]))], Vec::new()),
            run: &directory,
            checkpoints: &checkpoints,
            metrics: &mut metrics,
            trainer: &mut trainer,
        }
        .run(&mut watch)?;
        assert_eq!(end == End::Done, stop.is_none());
        compared = watch.compared;
    }
    Ok(compared)
}

/// A directory that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("xtrain-grpo-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The bytes of metrics, rollouts and weights of a run.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = vec![("metrics.jsonl".to_string(), std::fs::read(dir.join("metrics.jsonl")).unwrap())];
    for part in ["rollouts", "checkpoints"] {
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
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// Runs the configuration in a new directory; returns its files.
fn outcome(name: &str, config: &RunConfig, setup: &Setup) -> (Vec<(String, Vec<u8>)>, Compared) {
    let dir = Scratch::new(name);
    let compared = run(config, setup, &dir.0).unwrap();
    (files(&dir.0), compared)
}

#[track_caller]
fn assert_equal(name: &str, want: &[(String, Vec<u8>)], got: &[(String, Vec<u8>)]) {
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|f| f.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(want), names(got), "{name}");
    for ((file, want), (_, got)) in want.iter().zip(got) {
        assert!(want == got, "{name}: {file} differs");
    }
}

#[test]
fn every_log_probability_of_every_step_has_the_bits_of_the_sampler() {
    let chunked = EngineOptions { prefill_chunk: Some(3), ..EngineOptions::default() };
    let preempted =
        EngineOptions { kv_capacity: Some(64), kv: KvKind::Paged { page: 4 }, ..EngineOptions::default() };
    let cached =
        EngineOptions { prefix_caching: PrefixCaching::On, kv: KvKind::Paged { page: 4 }, ..chunked };
    let engines = [EngineOptions::default(), chunked, preempted, cached];
    let filters = ["grpo.top_k=0", "grpo.top_k=5", "grpo.top_p=0.8", "grpo.min_p=0.1"];
    let mut tokens = 0.0;
    for (i, temperature) in ["0.7", "1", "1.3"].iter().enumerate() {
        for (j, filter) in filters.iter().enumerate() {
            let dtype = if (i + j) % 2 == 0 { "f32" } else { "bf16" };
            let keys = [&format!("grpo.temperature={temperature}"), *filter, &format!("train.dtype={dtype}")];
            let setup = Setup { engine: engines[j], ..Setup::threads(2) };
            let (_, compared) = outcome(&format!("bits-{i}-{j}"), &config(&keys), &setup);
            assert_eq!(compared.steps, 4, "{keys:?}");
            tokens += compared.tokens;
        }
    }
    assert!(tokens > 4000.0, "{tokens}");
}

#[test]
fn the_files_of_a_run_do_not_depend_on_threads_micro_batches_engines_or_interruptions() {
    let keys = [
        "grpo.num_iterations=2",
        "grpo.steps_per_generation=2",
        "grpo.steps=8",
        "grpo.beta=0.05",
        "grpo.top_p=0.9",
    ];
    let (want, compared) = outcome("base", &config(&keys), &Setup::threads(1));
    assert!(compared.tokens > 0.0);
    for threads in [2, 3] {
        let (got, _) = outcome("threads", &config(&keys), &Setup::threads(threads));
        assert_equal(&format!("{threads} threads"), &want, &got);
    }
    for micro_batch in [1, 3, 100] {
        let key = format!("grpo.micro_batch={micro_batch}");
        let (got, _) = outcome("micro", &config(&[&keys[..], &[key.as_str()]].concat()), &Setup::threads(2));
        assert_equal(&format!("micro-batches of {micro_batch}"), &want, &got);
    }
    let kv = KvKind::Paged { page: 4 };
    let engine =
        EngineOptions { prefill_chunk: Some(2), kv, kv_capacity: Some(48), ..EngineOptions::default() };
    let setup = Setup { engine, stops: vec![4], ..Setup::threads(2) };
    assert_equal("interrupted", &want, &outcome("stops", &config(&keys), &setup).0);
}

/// A run of two steps with top-p and pages of 4 positions. Returns the number of compared tokens.
#[cfg(feature = "faults")]
fn two_steps(name: &str, keys: &[&str]) -> Result<usize, Error> {
    let dir = Scratch::new(name);
    let engine = EngineOptions { kv: KvKind::Paged { page: 4 }, ..EngineOptions::default() };
    let setup = Setup { engine, ..Setup::threads(2) };
    let keys = [&["grpo.top_p=0.9", "grpo.steps=2", "grpo.eval_every=0"], keys].concat();
    run(&config(&keys), &setup, &dir.0).map(|compared| compared.tokens as usize)
}

/// The comparison of two steps, for the faults of a step.
#[cfg(feature = "faults")]
pub(crate) fn steps() -> Result<usize, String> {
    two_steps("steps", &[]).map_err(|error| format!("gate grpo, seed 0: {error}"))
}

#[cfg(feature = "faults")]
#[test]
fn each_fault_of_a_step_stops_the_run_with_its_own_error() {
    use xtrain::rewards::CompletionIndex;
    use xtrain::tensor::faults::{self, Fault};

    let error = |fault: Fault, keys: &[&str]| {
        let name = format!("{fault}-{}", keys.len());
        faults::with(fault, || two_steps(&name, keys)).expect_err("a fault that was not found")
    };
    // With a reference model, the kept sets of all completions are stored before the update.
    let reference: &[&str] = &["grpo.beta=0.05"];
    for keys in [&[][..], reference] {
        assert!(two_steps(&format!("no-fault-{}", keys.len()), keys).unwrap() > 100);
        let weights = error(Fault::WeightsChangeBeforeUpdate, keys);
        let Error::WeightsChanged { step: 1, policy, found } = &weights else { panic!("{weights}") };
        assert!(
            policy.starts_with("sha256:") && found.starts_with("sha256:") && policy != found,
            "{weights}"
        );
        let tokens = error(Fault::CompletionRetokenized, keys);
        assert!(matches!(tokens, Error::TokensChanged { .. }), "{tokens}");
        let filters = error(Fault::UpdateForgetsTopP, keys);
        let Error::FiltersDiffer { want, found } = &filters else { panic!("{filters}") };
        assert!(want.contains("top_p: Some(0.9)") && found.contains("top_p: None"), "{filters}");
        let neighbor = error(Fault::RewardOfTheNeighbor, keys);
        let Error::RewardOrder { want, found, .. } = &neighbor else { panic!("{neighbor}") };
        let at = |prompt, completion| CompletionIndex { prompt, completion };
        assert_eq!((*want, *found), (at(0, 0), at(3, 3)), "{neighbor}");
        for stale in [Fault::PageOffByOne, Fault::DroppedCacheWrite] {
            let page = error(stale, keys);
            assert!(matches!(page, Error::Mismatch { .. }), "{stale}: {page}");
        }
    }
    // The comparison over the whole vocabulary precedes the update.
    let page = error(Fault::PageOffByOne, &["grpo.verify_every=1", "grpo.beta=0", "grpo.top_k=0"]);
    assert!(matches!(page, Error::Verify { step: 1, .. }), "{page}");
}

#[test]
fn groups_without_spread_are_replaced_and_a_step_without_spread_changes_nothing() {
    let keys =
        ["grpo.num_generations=2", "grpo.max_completion_length=1", "grpo.top_k=2", "grpo.resample_groups=2"];
    let (files, _) = outcome("resample", &config(&keys), &Setup::threads(1));
    let text = String::from_utf8(files[0].1.clone()).unwrap();
    let discarded = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["discarded_groups"].as_f64().unwrap_or(0.0)
    };
    assert!(text.lines().map(discarded).sum::<f64>() > 0.0, "{text}");
    let keys = ["grpo.num_generations=1"];
    let dir = Scratch::new("flat");
    run(&config(&keys), &Setup::threads(1), &dir.0).unwrap();
    let weights =
        |step| std::fs::read(dir.0.join(format!("checkpoints/step_{step:06}/model.safetensors"))).unwrap();
    assert!(weights(3) == weights(4));
}
