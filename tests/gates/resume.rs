//! The gate of resumed runs: `Training` stopped at a random step and taken up from its directory, against one
//! that is not.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xtrain::config::{Layer, RunConfig};
use xtrain::evaluate::Evaluation;
use xtrain::model::checkpoint::{CheckpointDir, CheckpointError, RealFs};
use xtrain::model::data::{Role, Tokens};
use xtrain::model::store::{self, RunState};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Model, StepReport, Trainer};
use xtrain::run::RunDir;
use xtrain::tensor::Device;
use xtrain::training::{self, DataLoader, End, Error, Observer, Source, Training};

use crate::dice::Dice;
use crate::training::{Bits, Difference, failed, state};

const SEED: u64 = 20_251_121;

/// A run, and where it is interrupted.
#[derive(Debug)]
struct Case {
    number: u64,
    config: RunConfig,
    stops: Vec<u64>,
    threads: usize,
}

impl Case {
    fn draw(number: u64) -> Case {
        let mut dice = Dice::new(SEED, number);
        let steps = dice.between(4, 8);
        let keys = [
            format!("model.dim={}", dice.pick(&[8, 12, 20])),
            "model.n_layers=1".into(),
            "model.n_heads=2".into(),
            format!("model.n_kv_heads={}", dice.pick(&[1, 2])),
            "model.head_dim=4".into(),
            "model.ffn_dim=16".into(),
            format!("model.tie_embeddings={}", dice.one_in(2)),
            format!("train.context={}", dice.pick(&[5, 17, 33])),
            format!("train.batch={}", dice.between(2, 4)),
            format!("train.micro_batch={}", dice.between(1, 2)),
            format!("train.order={}", dice.pick(&["random", "shuffled"])),
            format!("data.packing={}", dice.pick(&["stream", "documents"])),
            format!("train.dtype={}", dice.pick(&["f32", "bf16"])),
            format!("train.seed={}", 1 + dice.below(1000)),
            format!("train.steps={steps}"),
            "train.warmup=2".into(),
            format!("train.save_every={}", dice.between(0, 3)),
            format!("train.eval_every={}", dice.between(0, 3)),
            "train.eval_tokens=40".into(),
            "train.sample_every=0".into(),
        ];
        let config = RunConfig::load(&keys.map(Layer::Set)).expect("a configuration");
        let stops = (0..dice.between(1, 2)).map(|_| dice.between(1, steps - 1) as u64).collect();
        Case { number, config, stops, threads: dice.between(1, 2) }
    }

    fn source(&self) -> Source {
        let mut dice = Dice::new(SEED ^ 1, self.number);
        let tokenizer = Tokenizer::byte();
        let mut documents: Vec<Vec<(u32, Role)>> = Vec::new();
        for _ in 0..40 {
            let ids = (0..dice.between(2, 28)).map(|_| (dice.below(90) as u32, Role::Learnt));
            documents.push(ids.collect());
        }
        let tokens = Tokens::from_documents(documents, tokenizer.vocab_size() as u32).expect("ids of bytes");
        Source::new(&self.config, tokens, tokenizer).expect("a share")
    }
}

/// Stops a run at a step.
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

/// Goes on to the step `at`, or to the end; what the trainer holds then.
fn go(
    case: &Case,
    run: &RunDir,
    (mut trainer, standing): (Trainer, RunState),
    at: u64,
) -> Result<Bits, Difference> {
    let source = case.source();
    let checkpoints =
        CheckpointDir::open(Arc::new(RealFs), run.path(), case.config.train.keep).map_err(failed)?;
    let (mut metrics, _) = run.logs_after(trainer.step_number()).map_err(failed)?;
    let loader = DataLoader::new(&case.config, &source, standing.seed).map_err(failed)?;
    let end = Training {
        config: &case.config,
        source: &source,
        loader: &loader,
        checkpoints: &checkpoints,
        metrics: &mut metrics,
        trainer: &mut trainer,
        state: standing,
    }
    .run(&mut Stopper { at, step: 0 })
    .map_err(failed)?;
    assert_eq!(end == End::Stopped, at != u64::MAX, "{case:?}");
    let mut all = state(&trainer);
    let log = std::fs::read(run.metrics()).map_err(failed)?;
    all.push(("metrics.jsonl".into(), log.into_iter().map(u32::from).collect()));
    Ok(all)
}

fn begin(case: &Case, dir: &Path) -> Result<(RunDir, (Trainer, RunState)), Difference> {
    let device = Device::cpu_with(case.threads, xtrain::tensor::Simd::detect());
    let vocab = Tokenizer::byte().vocab_size();
    let trainer = training::new_trainer(&case.config, vocab, &device).map_err(failed)?;
    let run = RunDir::create(dir, &case.config).map_err(failed)?;
    Ok((run, (trainer, RunState { seed: case.config.train.seed, best: None })))
}

/// A directory that goes with its owner.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // What cannot be removed stays in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn resumed(case: &Case) -> Result<usize, Difference> {
    let name = format!("xtrain-resume-{}-{:?}", std::process::id(), std::thread::current().id());
    let dir = Temporary(std::env::temp_dir().join(format!("{name}-{}", case.number)));
    let (run, fresh) = begin(case, &dir.0.join("straight"))?;
    let want = go(case, &run, fresh, u64::MAX)?;
    let (run, fresh) = begin(case, &dir.0.join("stopped"))?;
    let (mut next, mut at) = (fresh, 0);
    let mut stops = case.stops.clone();
    stops.sort_unstable();
    for stop in stops {
        if stop > at {
            let _ = go(case, &run, next, stop)?;
            let device = Device::cpu_with(case.threads, xtrain::tensor::Simd::detect());
            let made = (training::compute(case.config.train.dtype), &device);
            let hyper = (training::optim_config(&case.config), training::schedule(&case.config));
            let taken = store::resume(run.path(), made, hyper).map_err(failed)?;
            assert!(taken.refused.is_empty(), "{:?}", taken.refused);
            (next, at) = ((taken.trainer, taken.standing), stop);
        }
    }
    let got = go(case, &run, next, u64::MAX)?;
    crate::training::same_bits(("resume", case.number, SEED), &format!("{case:?}"), (&got, &want))
}

/// Runs the gate over `n` cases; how many values had the same bits.
pub(crate) fn over(n: u64) -> Result<usize, Difference> {
    (0..n).map(|number| resumed(&Case::draw(number))).sum()
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one() {
    let n = over(24).unwrap_or_else(|Difference(e)| panic!("{e}"));
    println!("resume: 24 runs stopped at random steps, {n} values, 0 differing bits");
    assert!(n > 100_000, "{n}");
}
