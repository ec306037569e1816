//! The gate of learning: a small run from random weights raises its reward, and does not with shuffled rewards.
use serde_json::Value;
use xtrain::rewards::{Reward, RewardError, RewardInput, RewardReply, RewardRow};

use super::{Scratch, Setup, config, run};

/// Steps whose rewards are averaged, at the start and at the end of a run.
const AVERAGED: usize = 10;

/// The standard deviation of the rise of 16 runs with shuffled rewards (seeds 0 to 7, f32 and bf16). The sampling of
/// 1,280 tokens at each end accounts for less than 0.02; the rest is the random walk of the weights.
#[cfg(feature = "faults")]
const NOISE: f64 = 0.034;

/// The least rise of the mean reward: more than 14 times the noise. The same 16 runs with their own rewards rise by
/// 0.60 to 0.69.
const RISE: f64 = 0.5;

/// The fraction of tokens below 64. Random weights give a quarter of the tokens such an id.
struct LowTokens([String; 1]);

impl Reward for LowTokens {
    fn names(&self) -> &[String] {
        &self.0
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        let reward = |input: &RewardInput<'_>| {
            let low = input.completion_ids.iter().filter(|&&id| id < 64).count();
            let reward = low as f64 / input.completion_ids.len() as f64;
            RewardRow { at: input.location(), reply: RewardReply::Rewards(vec![Some(reward)]) }
        };
        Ok(batch.iter().map(reward).collect())
    }
}

/// The mean reward of the first and of the last [`AVERAGED`] steps of a run of 60 steps with 32 completions each.
fn rewards(dtype: &str, seed: u64) -> Result<[f64; 2], String> {
    let (dtype_key, seed_key) = (format!("train.dtype={dtype}"), format!("train.seed={seed}"));
    let keys = [
        "model.n_layers=1",
        "model.dim=32",
        "model.head_dim=16",
        &dtype_key,
        &seed_key,
        "grpo.steps=60",
        "grpo.num_generations=8",
        "grpo.max_completion_length=4",
        "grpo.eval_every=0",
        "grpo.save_every=0",
    ];
    let dir = Scratch::new(&format!("learning-{dtype}-{seed}"));
    let setup = Setup { reward: || Box::new(LowTokens(["low".to_string()])), ..Setup::threads(2) };
    run(&config(&keys), &setup, &dir.0).map_err(|error| format!("gate learning, seed {seed}: {error}"))?;
    let metrics = std::fs::read_to_string(dir.0.join("metrics.jsonl")).unwrap();
    let reward = |line: &str| serde_json::from_str::<Value>(line).unwrap()["reward"].as_f64();
    let rewards: Vec<f64> = metrics.lines().filter_map(reward).collect();
    assert_eq!(rewards.len(), 60);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    Ok([mean(&rewards[..AVERAGED]), mean(&rewards[rewards.len() - AVERAGED..])])
}

/// The gate in f32 and bf16. Returns the number of averaged rewards.
pub(crate) fn over() -> Result<usize, String> {
    for dtype in ["f32", "bf16"] {
        let [first, last] = rewards(dtype, 0)?;
        let what = format!("{dtype}: the mean reward goes from {first:.3} to {last:.3}");
        if last - first < RISE {
            return Err(format!("gate learning, seed 0: {what}, expected a rise of at least {RISE}"));
        }
        println!("{what}");
    }
    Ok(4 * AVERAGED)
}

#[test]
fn a_run_raises_its_reward() {
    over().unwrap_or_else(|difference| panic!("{difference}"));
}

/// The mean rise of four runs is within four standard deviations of 0.
#[cfg(feature = "faults")]
#[test]
fn with_shuffled_rewards_the_same_run_ends_no_higher_than_it_began() {
    use xtrain::tensor::faults::{self, Fault};

    let runs = [("f32", 0), ("bf16", 0), ("f32", 1), ("bf16", 1)];
    let rise = |(dtype, seed)| {
        let [first, last] = faults::with(Fault::RewardsShuffled, || rewards(dtype, seed)).unwrap();
        println!("{dtype}, seed {seed}, shuffled: the mean reward goes from {first:.3} to {last:.3}");
        last - first
    };
    let mean = runs.map(rise).iter().sum::<f64>() / runs.len() as f64;
    assert!(mean.abs() < 4.0 * NOISE / (runs.len() as f64).sqrt(), "{mean}");
}
