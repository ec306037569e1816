//! The gate for resumed runs: `Training` that is stopped at random steps and resumed from its run directory, against
//! an uninterrupted run.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xtrain::config::{Layer, RunConfig};
use xtrain::evaluate::Evaluation;
use xtrain::model::checkpoint::{CheckpointDir, CheckpointError, RealFs};
use xtrain::model::comm::{Communicator, SingleProcess};
use xtrain::model::data::{Role, Tokens};
use xtrain::model::store::{self, RunState};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Model, Processes, StepReport, Trainer};
use xtrain::run::RunDir;
use xtrain::tensor::Device;
use xtrain::training::{self, DataLoader, End, Error, Observer, RunFiles, Source, Training};

use crate::cli::Scratch;
use crate::rng::CaseRng;
use crate::training::{Bits, Difference, GateCase, failed, state as trainer_state};

const SEED: u64 = 20_251_121;

/// Further files of a checkpoint that are compared byte by byte.
const WHOLE: [&str; 3] = ["manifest.json", "model.safetensors", "trainer/optimizer.safetensors"];

/// A run and the steps at which it is stopped.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) number: u64,
    pub(crate) config: RunConfig,
    pub(crate) stops: Vec<u64>,
    pub(crate) threads: usize,
}

impl Case {
    fn draw(number: u64) -> Case {
        let mut rng = CaseRng::new(SEED, number);
        let steps = rng.between(4, 8);
        let keys = [
            format!("model.dim={}", rng.choose(&[8, 12, 20])),
            "model.n_layers=1".into(),
            "model.n_heads=2".into(),
            format!("model.n_kv_heads={}", rng.choose(&[1, 2])),
            "model.head_dim=4".into(),
            "model.ffn_dim=16".into(),
            format!("model.tie_embeddings={}", rng.one_in(2)),
            format!("train.context={}", rng.choose(&[5, 17, 33])),
            format!("train.batch={}", rng.between(2, 4)),
            format!("train.micro_batch={}", rng.between(1, 2)),
            format!("train.order={}", rng.choose(&["random", "shuffled"])),
            format!("data.packing={}", rng.choose(&["stream", "documents"])),
            format!("train.dtype={}", rng.choose(&["f32", "bf16"])),
            format!("train.seed={}", 1 + rng.below(1000)),
            format!("train.steps={steps}"),
            "train.warmup=2".into(),
            format!("train.save_every={}", rng.between(0, 3)),
            format!("train.eval_every={}", rng.between(0, 3)),
            "train.eval_tokens=40".into(),
            "train.sample_every=0".into(),
            // the larger rate makes the validation loss rise
            format!("train.learning_rate={}", rng.choose(&["0.001", "0.3"])),
        ];
        let config = RunConfig::load(&keys.map(Layer::Set)).expect("a configuration");
        let stops = (0..rng.between(1, 2)).map(|_| rng.between(1, steps - 1) as u64).collect();
        Case { number, config, stops, threads: rng.between(1, 2) }
    }

    /// Documents of different lengths. Some tokens are context only.
    pub(crate) fn source(&self) -> Source {
        let mut rng = CaseRng::new(SEED ^ 1, self.number);
        let tokenizer = Tokenizer::byte();
        let mut documents: Vec<Vec<(u32, Role)>> = Vec::new();
        for _ in 0..40 {
            let mut document: Vec<(u32, Role)> = Vec::new();
            for at in 0..rng.between(2, 28) {
                let role = if at != 1 && rng.one_in(4) { Role::Context } else { Role::Target };
                document.push((rng.below(90) as u32, role));
            }
            documents.push(document);
        }
        let tokens = Tokens::from_documents(documents, tokenizer.vocab_size() as u32).expect("ids of bytes");
        Source::new(&self.config, tokens, tokenizer).expect("a share")
    }
}

/// Stops a run at step `at`.
struct Stopper {
    at: u64,
    step: u64,
}

impl Observer for Stopper {
    fn step(&mut self, report: &StepReport, _: Option<&Evaluation>) -> Result<(), Error> {
        self.step = report.step;
        Ok(())
    }

    fn saved(&mut self, _: PathBuf, _: Option<CheckpointError>) {}

    fn sample(&mut self, _: &Model, _: u64) {}

    fn stop(&mut self) -> bool {
        self.step == self.at
    }
}

/// Trains to step `at`, or to the end. Returns the trainer's state and the metrics.
fn train(case: &Case, run: &RunDir, trainer: Trainer, state: RunState, at: u64) -> Result<Bits, Difference> {
    train_as(case, run, (trainer, state), at, Arc::new(SingleProcess))
}

/// [`train`] as one of several processes, of which the first one writes the run and decides when it stops.
pub(crate) fn train_as(
    case: &Case,
    run: &RunDir,
    (mut trainer, state): (Trainer, RunState),
    at: u64,
    comm: Arc<dyn Communicator>,
) -> Result<Bits, Difference> {
    let source = case.source();
    let open = || CheckpointDir::open(Arc::new(RealFs), run.path(), case.config.train.keep);
    let is_first = comm.rank() == 0;
    let checkpoints = is_first.then(open).transpose().map_err(failed)?;
    let logs = is_first.then(|| run.logs_after(trainer.step_number())).transpose().map_err(failed)?;
    let mut metrics = logs.map(|(metrics, _)| metrics);
    let files = checkpoints.as_ref().zip(metrics.as_mut());
    let files = files.map(|(checkpoints, metrics)| RunFiles { checkpoints, best: None, metrics });
    let loader = DataLoader::new(&case.config, &source, state.seed).map_err(failed)?;
    let end = Training {
        config: &case.config,
        source: &source,
        loader: &loader,
        files,
        trainer: &mut trainer,
        state,
        processes: Processes::new(comm),
    }
    .run(&mut Stopper { at: if is_first { at } else { u64::MAX }, step: 0 })
    .map_err(failed)?;
    assert_eq!(end == End::Stopped, at != u64::MAX, "{case:?}");
    let mut all = trainer_state(&trainer);
    if is_first {
        all.extend(files_of(run, trainer.step_number())?);
    }
    Ok(all)
}

/// The metrics of a run and the files of its checkpoint at `step`.
fn files_of(run: &RunDir, step: u64) -> Result<Bits, Difference> {
    let mut all = Vec::new();
    let saved = run.path().join(format!("checkpoints/step_{step:06}"));
    for file in
        [run.metrics(), saved.join("trainer/control.bin")].into_iter().chain(WHOLE.map(|f| saved.join(f)))
    {
        let bytes = std::fs::read(&file).map_err(failed)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.push((name, bytes.into_iter().map(u32::from).collect()));
    }
    Ok(all)
}

/// Creates a run directory, and the trainer and the run state at step 0.
pub(crate) fn begin(case: &Case, dir: &Path) -> Result<(RunDir, Trainer, RunState), Difference> {
    let device = Device::cpu_with(case.threads, xtrain::tensor::Simd::detect());
    let vocab = Tokenizer::byte().vocab_size();
    let trainer = training::new_trainer(&case.config, vocab, &device).map_err(failed)?;
    let run = RunDir::create(dir, &case.config.to_toml()).map_err(failed)?;
    Ok((run, trainer, RunState { seed: case.config.train.seed, best: None }))
}

/// Trains without an interruption. Returns the trainer's state, the metrics and the files of the last checkpoint.
pub(crate) fn uninterrupted(case: &Case, dir: &Path) -> Result<Bits, Difference> {
    let (run, trainer, state) = begin(case, dir)?;
    train(case, &run, trainer, state, u64::MAX)
}

/// [`uninterrupted`] with the stops of the case; each time, the run is resumed from its directory.
pub(crate) fn interrupted(case: &Case, dir: &Path) -> Result<Bits, Difference> {
    let (run, mut trainer, mut state) = begin(case, dir)?;
    let mut at = 0;
    let mut stops = case.stops.clone();
    stops.sort_unstable();
    for stop in stops {
        if stop > at {
            let _ = train(case, &run, trainer, state, stop)?;
            ((trainer, state), at) = (restored(case, &run)?, stop);
        }
    }
    train(case, &run, trainer, state, u64::MAX)
}

/// The trainer and the run state of the newest checkpoint.
pub(crate) fn restored(case: &Case, run: &RunDir) -> Result<(Trainer, RunState), Difference> {
    let device = Device::cpu_with(case.threads, xtrain::tensor::Simd::detect());
    let compute = training::compute(case.config.train.dtype);
    let (optim, schedule) = (training::optim_config(&case.config), training::schedule(&case.config));
    let resumed = store::resume(run.path(), compute, &device, optim, schedule).map_err(failed)?;
    assert!(resumed.refused.is_empty(), "{:?}", resumed.refused);
    Ok((resumed.trainer, resumed.run_state))
}

fn resumed(case: &Case) -> Result<usize, Difference> {
    let dir = Scratch::new("resume");
    let want = uninterrupted(case, &dir.0.join("uninterrupted"))?;
    let got = interrupted(case, &dir.0.join("stopped"))?;
    let gate_case = GateCase { gate: "resume", number: case.number, seed: SEED };
    crate::training::same_bits(gate_case, &format!("{case:?}"), &got, &want)
}

/// Runs the gate over `n` cases. Returns the number of compared values.
pub(crate) fn over(n: u64) -> Result<usize, Difference> {
    (0..n).map(|number| resumed(&Case::draw(number))).sum()
}

#[test]
fn a_resumed_run_is_bit_identical_to_an_uninterrupted_run() {
    let n = over(24).unwrap_or_else(|Difference(e)| panic!("{e}"));
    println!("resume: 24 runs stopped at random steps, {n} values, 0 differ");
    assert!(n > 100_000, "{n}");
}
