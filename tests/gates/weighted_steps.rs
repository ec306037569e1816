//! The gate for steps with loss weights, such as advantages.
use xtrain::decode::{EngineOptions, Request, generate};
use xtrain::model::{
    Config, LogitsProcessing, Model, OptimConfig, Schedule, Trainer, TrainingExample, normalize_loss_weights,
};
use xtrain::tensor::{Device, Dtype};

use crate::training::state;

const SEED: u64 = 17;

fn trainer() -> Trainer {
    let cfg = Config { max_positions: 16, ..Config::tiny() };
    let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), SEED).unwrap();
    let optim = OptimConfig { clip: 0.5, ..OptimConfig::default() };
    Trainer::new(model, optim, Schedule::constant(1e-2)).unwrap()
}

fn examples() -> Vec<TrainingExample> {
    let weights = [0.75, -0.25, 0.0, 2.0];
    (0..4).map(|n: u32| TrainingExample::window(&[1, 2 + n, 5, 3 + n], weights[n as usize])).collect()
}

/// Compares a step with loss weights with the gradient of the same examples. Returns the number of compared values.
pub(crate) fn over() -> Result<usize, String> {
    let [mut got, mut want] = [trainer(), trainer()];
    let mut compared = 0;
    for micro_batch in [1, 4] {
        let report = got.step_weighted(examples(), micro_batch).map_err(|e| e.to_string())?;
        let gradient =
            want.gradient(&examples(), LogitsProcessing::default(), 3).map_err(|e| e.to_string())?;
        let wanted = want.apply(gradient, 12).map_err(|e| e.to_string())?;
        if report != wanted {
            return Err(format!("gate weighted steps, seed {SEED}: got {report:?}, want {wanted:?}"));
        }
        for ((name, got), (_, want)) in state(&got).iter().zip(&state(&want)) {
            if got != want {
                return Err(format!("gate weighted steps, seed {SEED}: {name} differs"));
            }
            compared += got.len();
        }
    }
    Ok(compared)
}

#[test]
fn a_weighted_step_uses_the_loss_weights_of_its_examples() {
    let n = over().unwrap_or_else(|e| panic!("{e}"));
    assert!(n > 10_000, "{n}");
}

#[test]
fn a_weighted_step_with_the_weights_of_a_mean_is_a_step() {
    let [mut got, mut want] = [trainer(), trainer()];
    let plain = || {
        examples().into_iter().map(|mut example| {
            example.targets_mut().for_each(|target| target.weight = 1.0);
            example
        })
    };
    let mut means: Vec<TrainingExample> = plain().collect();
    assert_eq!(normalize_loss_weights(&mut means), 12);
    let report = got.step_weighted(means, 2).unwrap();
    assert_eq!(report, want.step(plain().collect(), 2).unwrap());
    assert!(state(&got) == state(&want));
}

#[test]
fn a_policy_gradient_loop_of_weighted_steps_raises_the_reward() {
    let mut trainer = trainer();
    let mut last = 0.0;
    for step in 0..40 {
        let request = |id| Request { id, ..Request::sampled(&[1], 1, 1.0, step) };
        let requests = (0..32).map(request).collect();
        let completions = generate(&trainer.model, requests, EngineOptions::default()).unwrap();
        let rewards: Vec<f32> = completions.iter().map(|c| f32::from(c.tokens[0] % 2 == 1)).collect();
        last = rewards.iter().sum::<f32>() / 32.0;
        let samples = completions.iter().zip(&rewards).map(|(completion, reward)| {
            TrainingExample::window(&[1, completion.tokens[0]], (reward - last) / 32.0)
        });
        trainer.step_weighted(samples.collect(), 8).unwrap();
    }
    assert!(last > 0.9, "a token in 32 samples should be odd: {last}");
}
