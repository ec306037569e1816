//! The training gates: the result of a step does not depend on the split into micro-batches, the number of threads or
//! the instruction set.
use xtrain::model::{
    ActivationCheckpointing, Config, Decay, Error, LogitsProcessing, Model, OptimConfig, Params, Result,
    Schedule, Trainer, TrainingExample, normalize_loss_weights, objective,
};
use xtrain::tensor::ops::{LogProb, Target};
use xtrain::tensor::testing::simds;
use xtrain::tensor::{Device, Dtype, Simd};

use crate::branches;
use crate::rng::{CaseRng, values};

const SEED: u64 = 20_250_608;

/// A run: a model and a number of steps.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) number: u64,
    pub(crate) cfg: Config,
    pub(crate) dtype: Dtype,
    pub(crate) steps: u64,
    pub(crate) data: u64,
}

/// How a run is computed.
#[derive(Debug, Clone)]
struct Setup {
    threads: usize,
    /// `None`: the reference backend.
    simd: Option<Simd>,
    /// The seed of the sizes of the micro-batches. `None`: one micro-batch per step.
    split: Option<u64>,
    keep: ActivationCheckpointing,
}

/// A difference between two runs.
#[derive(Debug, PartialEq)]
pub(crate) struct Difference(pub(crate) String);

impl Run {
    pub(crate) fn draw(number: u64) -> Run {
        let mut rng = CaseRng::new(SEED, number);
        let n_kv_heads = rng.choose(&[1, 2]);
        let cfg = Config {
            vocab: rng.between(5, 61),
            dim: rng.choose(&[6, 8, 12, 20]),
            ffn_dim: rng.choose(&[8, 16, 37]),
            n_layers: rng.between(1, 2),
            n_heads: n_kv_heads * rng.choose(&[1, 2]),
            n_kv_heads,
            head_dim: rng.choose(&[2, 4, 10]),
            max_positions: 80,
            rope_theta: 1e4,
            norm_eps: 1e-6,
            qk_norm: rng.one_in(2),
            tie_embeddings: number.is_multiple_of(2),
            ..Config::default()
        };
        let dtype = [Dtype::F32, Dtype::BF16][(number / 2 % 2) as usize];
        Run { number, cfg, dtype, steps: rng.between(2, 4) as u64, data: rng.next_u64() }
    }

    /// A trainer at step 0.
    pub(crate) fn trainer(&self, device: &Device) -> Result<Trainer> {
        let mut rng = CaseRng::new(SEED ^ 1, self.number);
        let scale = (self.cfg.dim as f32).sqrt().recip();
        let params = Params::load(&self.cfg, self.dtype, device, |_, shape| {
            let mut all = values(shape.iter().product(), scale, &mut rng);
            all.iter_mut().filter(|_| shape.len() == 1).for_each(|x| *x += 1.0);
            Ok(all)
        })?;
        let model = Model::new(self.cfg.clone(), params)?;
        Trainer::new(model, OptimConfig::default(), schedule())
    }

    /// The training examples of step `step`: documents, and prompts with branches.
    pub(crate) fn samples(&self, data: u64, step: u64) -> Vec<TrainingExample> {
        let mut samples = self.documents(data, step);
        let mut rng = CaseRng::new(data ^ 1, step);
        samples.push(branches::tree(&mut rng, self.cfg.vocab, 30));
        samples.push(branches::tree(&mut rng, self.cfg.vocab, 3));
        normalize_loss_weights(&mut samples);
        samples
    }

    /// Training examples of different lengths. Some rows have no target.
    fn documents(&self, data: u64, step: u64) -> Vec<TrainingExample> {
        let mut rng = CaseRng::new(data, step);
        let token = |rng: &mut CaseRng| rng.below(self.cfg.vocab) as u32;
        let mut samples = Vec::new();
        for _ in 0..rng.between(3, 7) {
            let n = rng.choose(&[2, 5, 17, 33, 64, 70]);
            let inputs: Vec<u32> = (0..n).map(|_| token(&mut rng)).collect();
            let target = |id| Target { id, weight: 0.0, bonus: 0.0 };
            let targets = (0..n).map(|_| Some(target(token(&mut rng))).filter(|_| !rng.one_in(5)));
            let targets = targets.collect();
            let starts = if n > 16 && rng.one_in(3) { vec![n / 4, n / 2] } else { Vec::new() };
            samples.push(TrainingExample { inputs, targets, starts, ..TrainingExample::default() });
        }
        normalize_loss_weights(&mut samples);
        samples
    }
}

fn schedule() -> Schedule {
    Schedule {
        decay: Decay::Cosine,
        warmup_start_lr: 0.0,
        lr: 1e-2,
        min_lr: 1e-3,
        warmup_steps: 2,
        steps: 20,
        decay_steps: 0,
    }
}

impl Setup {
    fn plain() -> Setup {
        Setup { threads: 1, simd: Some(Simd::detect()), split: None, keep: ActivationCheckpointing::Off }
    }

    fn device(&self) -> Device {
        self.simd.map_or_else(Device::reference, |simd| Device::cpu_with(self.threads, simd))
    }

    /// The training examples of a step, split into micro-batches.
    fn parts<'a>(&self, samples: &'a [TrainingExample], step: u64) -> Vec<&'a [TrainingExample]> {
        let Some(split) = self.split else { return vec![samples] };
        let (mut rng, mut parts, mut left) = (CaseRng::new(split, step), Vec::new(), samples);
        while !left.is_empty() {
            let (part, rest) = left.split_at(rng.between(1, left.len()));
            parts.push(part);
            left = rest;
        }
        parts
    }
}

/// The named losses, norms, weights and moments of a run, as bits.
pub(crate) type Bits = Vec<(String, Vec<u32>)>;

pub(crate) fn bits(x: &xtrain::tensor::Tensor) -> Vec<u32> {
    x.read::<f32>().expect("weights and moments are f32").iter().map(|x| x.to_bits()).collect()
}

/// The state of a trainer: step, optimizer, weights and moments.
pub(crate) fn state(trainer: &Trainer) -> Bits {
    let Trainer { model, optimizer, .. } = trainer;
    let mut all =
        vec![("step".to_string(), vec![trainer.step_number() as u32, trainer.target_tokens() as u32])];
    let powers = optimizer.powers.iter().flat_map(|p| [p.to_bits() as u32, (p.to_bits() >> 32) as u32]);
    all.push(("powers".into(), powers.collect()));
    for ((p, m), v) in model.params.iter().zip(&optimizer.m).zip(&optimizer.v) {
        all.push((p.name().into(), bits(p.value().unwrap())));
        all.push((format!("m.{}", p.name()), bits(m)));
        all.push((format!("v.{}", p.name()), bits(v)));
    }
    all
}

/// Computes one step in the micro-batches of `setup`. Returns its loss, gradients and norm.
fn step(trainer: &mut Trainer, samples: &[TrainingExample], setup: &Setup, n: u64) -> Result<Bits> {
    let (mut loss, mut grads) = (0f32, xtrain::model::Grads::zeros(&trainer.model.params).unwrap());
    for part in setup.parts(samples, n) {
        trainer.backward(part, LogitsProcessing::default(), &mut loss, &mut grads)?;
    }
    let grads = grads.finish()?;
    let rate = trainer.schedule.rate(n);
    let norm = trainer.optimizer.step(&mut trainer.model.params, &grads, rate)?.norm;
    let mut all = vec![(format!("loss of step {n}"), vec![loss.to_bits()])];
    for (p, g) in trainer.model.params.iter().zip(&grads) {
        all.push((format!("gradient of {} in step {n}", p.name()), bits(g)));
    }
    all.push((format!("norm of step {n}"), vec![norm.to_bits()]));
    Ok(all)
}

/// Computes all steps of a run, micro-batch by micro-batch.
fn complete(run: &Run, setup: &Setup) -> Result<Bits> {
    let mut trainer = run.trainer(&setup.device())?;
    trainer.checkpointing = setup.keep;
    let mut all = Vec::new();
    for n in 0..run.steps {
        all.extend(step(&mut trainer, &run.samples(run.data, n), setup, n)?);
    }
    all.extend(state(&trainer));
    Ok(all)
}

/// Compares two runs. Returns the number of compared values, or the first difference.
fn same(gate: &'static str, run: &Run, setting: &str, got: &Bits, want: &Bits) -> Result<usize, Difference> {
    let case = GateCase { gate, number: run.number, seed: SEED };
    same_bits(case, &format!("{setting} in {run:?}"), got, want)
}

/// A case of a gate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GateCase {
    pub(crate) gate: &'static str,
    pub(crate) number: u64,
    pub(crate) seed: u64,
}

/// Compares two lists of values. Returns the number of compared values, or the first difference with its gate, case
/// and seed.
pub(crate) fn same_bits(case: GateCase, setting: &str, got: &Bits, want: &Bits) -> Result<usize, Difference> {
    let GateCase { gate, number, seed } = case;
    let differ = |what: String| {
        Err(Difference(format!("gate {gate}, case {number}, seed {seed}: {what}\n  {setting}")))
    };
    let lengths = |all: &Bits| -> Vec<(String, usize)> {
        all.iter().map(|(name, values)| (name.clone(), values.len())).collect()
    };
    let mut n = 0;
    for ((name, got), (_, want)) in got.iter().zip(want) {
        if let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) {
            return differ(format!("{name}, value {at}: got {:08x}, want {:08x}", got[at], want[at]));
        }
        n += got.len();
    }
    if lengths(got) != lengths(want) {
        return differ(format!("names and lengths: got {:?}, want {:?}", lengths(got), lengths(want)));
    }
    Ok(n)
}

pub(crate) fn failed(e: impl std::fmt::Display) -> Difference {
    Difference(e.to_string())
}

/// Compares random splits of each step, on other numbers of threads and instruction sets, with one micro-batch per
/// step.
pub(crate) fn splits(run: &Run, max_threads: usize) -> Result<usize, Difference> {
    let mut rng = CaseRng::new(SEED ^ 2, run.number);
    let simds: Vec<Option<Simd>> = [None].into_iter().chain(simds().into_iter().map(Some)).collect();
    let want = complete(run, &Setup::plain()).map_err(failed)?;
    let mut n = 0;
    for _ in 0..3 {
        let split = (!rng.one_in(6)).then(|| rng.next_u64());
        let keep = rng.choose(&[ActivationCheckpointing::Off, ActivationCheckpointing::PerLayer]);
        let setup = Setup { threads: rng.between(1, max_threads), simd: rng.choose(&simds), split, keep };
        let got = complete(run, &setup).map_err(failed)?;
        n += same("micro-batches", run, &format!("{setup:?}"), &got, &want)?;
    }
    Ok(n)
}

/// Compares the rows of packed documents with each document alone.
pub(crate) fn packed(run: &Run) -> Result<usize, Difference> {
    let model = run.trainer(&Setup::plain().device()).map_err(failed)?.model;
    let values = |samples: &[TrainingExample]| -> Result<Bits, Difference> {
        let values = objective::evaluate(&model, samples, &mut 0.0).map_err(failed)?;
        let bits =
            |v: Option<LogProb>| v.map_or([0; 3], |v| [v.lse, v.log_prob, v.entropy].map(f32::to_bits));
        Ok(vec![("values".into(), values.into_iter().flat_map(bits).collect())])
    };
    let samples = run.documents(run.data, 0);
    let (mut together, mut alone) = (TrainingExample::default(), Vec::new());
    for sample in samples {
        let mut ends = sample.starts.clone();
        ends.push(sample.inputs.len());
        let mut start = 0;
        for end in ends {
            if !together.inputs.is_empty() {
                together.starts.push(together.inputs.len());
            }
            let document = TrainingExample {
                inputs: sample.inputs[start..end].to_vec(),
                targets: sample.targets[start..end].to_vec(),
                ..TrainingExample::default()
            };
            together.inputs.extend(&document.inputs);
            together.targets.extend(&document.targets);
            alone.push(document);
            start = end;
        }
    }
    let setting = format!("documents begin at {:?}", together.starts);
    let (got, want) = (values(&[together])?, values(&alone)?);
    same("packing", run, &setting, &got, &want)
}

/// Runs a gate over `n` cases. Returns the number of compared values.
pub(crate) fn over(n: u64, gate: impl Fn(&Run) -> Result<usize, Difference>) -> Result<usize, Difference> {
    (0..n).map(|number| gate(&Run::draw(number))).sum()
}

#[test]
fn gradients_and_weights_do_not_depend_on_the_micro_batches() {
    let n = over(48, |run| splits(run, 3)).unwrap_or_else(|Difference(e)| panic!("{e}"));
    println!("micro-batches: 48 runs, each with 3 other setups, {n} values, 0 differ");
    assert!(n > 400_000, "{n}");
}

#[test]
fn lists_with_other_lengths_or_names_differ() {
    let list = |name: &str, n| vec![(name.to_string(), vec![7; n])];
    let same = |a: &Bits, b: &Bits| same_bits(GateCase { gate: "lengths", number: 0, seed: 0 }, "", a, b);
    assert_eq!(same(&list("w", 3), &list("w", 3)), Ok(3));
    for other in [list("w", 2), list("w", 4), list("v", 3), Vec::new(), [list("w", 3), list("v", 0)].concat()]
    {
        assert!(same(&other, &list("w", 3)).is_err() && same(&list("w", 3), &other).is_err(), "{other:?}");
    }
}

#[test]
fn a_packed_document_has_the_values_of_the_document_alone() {
    let n = over(24, packed).unwrap_or_else(|Difference(e)| panic!("{e}"));
    println!("packing: 24 examples of several documents, {n} values, 0 differ");
    assert!(n > 5_000, "{n}");
}

#[test]
fn two_runs_from_one_seed_are_identical() {
    let twice = |run: &Run| {
        let setup = Setup { threads: 2, ..Setup::plain() };
        let (a, b) = (complete(run, &setup).map_err(failed)?, complete(run, &setup).map_err(failed)?);
        same("repetition", run, "the second run", &a, &b)
    };
    let n = over(20, twice).unwrap_or_else(|Difference(e)| panic!("{e}"));
    println!("repetition: 20 runs, {n} values, 0 differ");
}

#[test]
fn a_nan_stops_the_step_that_reads_it_and_changes_nothing() {
    let mut cases = 0;
    for number in 0..8 {
        let run = Run::draw(number);
        let n_params = run.trainer(&Device::cpu()).unwrap().model.params.iter().count();
        for (slot, bad) in (0..n_params).flat_map(|s| [(s, f32::NAN), (s, f32::INFINITY)]) {
            let mut trainer = run.trainer(&Device::cpu()).unwrap();
            trainer.step(run.samples(run.data, 0), 2).unwrap();
            let param = trainer.model.params.iter_mut().nth(slot).unwrap();
            let name = param.name().to_string();
            // the first row of the table belongs to token 0, which the step must read
            param.value_mut().unwrap().data_mut::<f32>().unwrap()[0] = bad;
            let before = state(&trainer);
            let mut samples = run.samples(run.data, 1);
            samples[0].inputs[0] = 0;
            let end = trainer.step(samples, 2);
            let stopped = matches!(end, Err(Error::NotFinite { step: 2, .. }));
            assert!(stopped, "case {number}, {name} {bad}: {end:?}");
            assert!(state(&trainer) == before, "case {number}, {name} {bad}");
            cases += 1;
        }
    }
    println!("non-finite: {cases} steps stopped without a change");
}
