//! Training steps: reports, by bits, and loss weights.
use xtrain::model::{
    Config, Model, OptimConfig, Schedule, StepReport, Trainer, TrainingExample, normalize_loss_weights,
};
use xtrain::tensor::{Device, Dtype};

use crate::{Record, list, row};

fn trainer(dtype: Dtype, optim: OptimConfig, schedule: Schedule) -> Trainer {
    let config = Config { vocab: 19, dim: 16, ffn_dim: 24, ..Config::tiny() };
    Trainer::new(Model::init(&config, dtype, &Device::cpu(), 11).unwrap(), optim, schedule).unwrap()
}

/// Windows of different lengths, with targets at two of three positions.
fn examples(step: u32) -> Vec<TrainingExample> {
    let example = |at: u32| {
        let tokens: Vec<u32> = (0..3 + 4 * at).map(|t| (5 * t + step + at) % 19).collect();
        let mut example = TrainingExample::window(&tokens, 1.0);
        example.targets.iter_mut().skip(2).step_by(3).for_each(|target| *target = None);
        example
    };
    (0..4).map(example).collect()
}

fn report(report: &StepReport) -> String {
    let StepReport { step, loss, grad_norm, learning_rate, target_tokens } = report;
    format!("{step} {loss:?} {grad_norm:?} {learning_rate:?} {target_tokens}")
}

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    let schedule = Schedule { warmup_steps: 3, ..Schedule::constant(1e-2) };
    for (name, dtype, shards, optim) in [
        ("f32", Dtype::F32, 1, OptimConfig::default()),
        ("bf16, 3 shards", Dtype::BF16, 3, OptimConfig::default()),
        (
            "f32, clip 0.01, eps 1, no decay",
            Dtype::F32,
            1,
            OptimConfig { clip: 0.01, eps: 1.0, weight_decay: 0.0, ..OptimConfig::default() },
        ),
    ] {
        out.section(format!("{name}: step, loss, gradient norm, learning rate, target tokens"));
        let mut trainer = trainer(dtype, optim, schedule);
        trainer.shards = shards;
        for step in 0..6 {
            out.line(report(&trainer.step(examples(step), 2).unwrap()));
        }
        out.line(report(&trainer.skip_step(7)));
        let mut weighted = examples(9);
        let targets = weighted.iter_mut().flat_map(TrainingExample::targets_mut);
        targets.zip(1u8..).for_each(|(target, n)| target.weight = 0.25 - f32::from(n) / 16.0);
        out.line(report(&trainer.step_weighted(weighted, 3).unwrap()));
        out.line(report(&trainer.step(examples(10), 1).unwrap()));
    }
    weights(&mut out);
    out
}

fn weights(out: &mut Record) {
    out.section("loss weights: targets | weight");
    for lengths in [&[2][..], &[3], &[2, 2, 2], &[9, 1], &[]] {
        let window = |&len: &u32| TrainingExample::window(&(0..len).collect::<Vec<_>>(), 1.0);
        let mut all: Vec<TrainingExample> = lengths.iter().map(window).collect();
        let n = normalize_loss_weights(&mut all);
        let weight = all.iter().flat_map(TrainingExample::targets).next().map(|target| target.weight);
        assert!(weight.is_none_or(|weight| weight == 1.0 / n as f32), "{lengths:?}");
        out.line(row(list(lengths), 10, format!("{n} | {weight:?}")));
    }
    out.section("refusals");
    let mut trainer = trainer(Dtype::F32, OptimConfig::default(), Schedule::constant(1e-2));
    let halves = vec![TrainingExample::window(&[1, 2, 3], 0.25)];
    out.line(trainer.step(halves, 1).unwrap_err().to_string());
    out.line(trainer.step(vec![TrainingExample::window(&[1, 99], 1.0)], 1).unwrap_err().to_string());
    trainer.shards = 0;
    out.line(trainer.step(examples(0), 1).unwrap_err().to_string());
}
