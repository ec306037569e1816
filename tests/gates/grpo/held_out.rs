//! The gate of evaluations: the completions of a held-out prompt have the random numbers of docs/numerics.md, section
//! 7, and the metrics are those of their rewards.
use serde_json::Value;
use xtrain::config::RunConfig;
use xtrain::decode::{
    Completion, EngineOptions, FinishReason, Request, SampleOptions, StopConditions, generate,
};
use xtrain::grpo::from_config;
use xtrain::grpo::prompts::text_prompt;
use xtrain::model::tasks::{PromptSet, Sums, Task};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Model, store};
use xtrain::rewards::{Reward, RewardError, RewardInput, RewardReply, RewardRow};
use xtrain::tensor::{Device, Dtype};

use super::{Scratch, Setup, config, run};

/// The ids of evaluation completions begin here.
const EVALUATION: u64 = 1 << 63;

/// A reward from 0 to 1 in quarters.
fn reward_of(tokens: &[u32]) -> f64 {
    f64::from(tokens.iter().sum::<u32>() % 5) / 4.0
}

/// A reward that applies to about half of the completions.
fn parity_of(tokens: &[u32]) -> Option<f64> {
    (tokens.iter().sum::<u32>() % 2 == 1).then_some((tokens.len() % 2) as f64)
}

struct Quarters([String; 2]);

impl Reward for Quarters {
    fn names(&self) -> &[String] {
        &self.0
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        let row = |input: &RewardInput<'_>| {
            let ids = input.completion_ids;
            let reply = RewardReply::Rewards(vec![Some(reward_of(ids)), parity_of(ids)]);
            RewardRow { at: input.location(), reply }
        };
        Ok(batch.iter().map(row).collect())
    }
}

/// `k` completions of each held-out prompt, with the ids of an evaluation at `step`.
fn completions(
    model: &Model,
    config: &RunConfig,
    step: u64,
    k: u64,
    options: SampleOptions,
) -> Vec<Completion> {
    let section = config.grpo.as_ref().unwrap();
    let (tokenizer, count) = (Tokenizer::byte(), section.eval_limit as u64);
    let prompts = Sums::default().prompts(PromptSet::HeldOut);
    let requests_of = |(prompt, text): (u64, String)| {
        let ids = text_prompt(text, &tokenizer).unwrap().ids;
        let first = EVALUATION + (step * count + prompt) * k;
        let request = move |id| Request {
            id,
            seed: config.train.seed,
            prompt: ids.clone(),
            options,
            max_new: section.max_completion_length,
            stop: StopConditions { eos: Tokenizer::byte().eos_ids().to_vec(), tokens: Vec::new() },
            constraint: None,
            top_logprobs: 0,
        };
        (first..first + k).map(request)
    };
    let requests = (0..count).zip(prompts).flat_map(requests_of).collect();
    generate(model, requests, EngineOptions::default()).unwrap()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len() as f64
}

/// Compares every evaluation of a run with completions that are generated one by one. Returns their number.
pub(crate) fn over() -> Result<usize, String> {
    let config = config(&[
        "grpo.eval_samples=3",
        "grpo.eval_limit=4",
        "grpo.keep=9",
        "grpo.reward_weights=[1.0, 0.0]",
        "train.seed=11",
    ]);
    let reward = || -> Box<dyn Reward> { Box::new(Quarters(["quarters", "parity"].map(String::from))) };
    let setup = Setup { reward, ..Setup::threads(2) };
    let dir = Scratch::new("held-out");
    run(&config, &setup, &dir.0).map_err(|error| error.to_string())?;
    let sampling = from_config::rollout_options(config.grpo.as_ref().unwrap(), 11, setup.engine).sampling;
    let metrics = std::fs::read_to_string(dir.0.join("metrics.jsonl")).unwrap();
    let mut compared = 0;
    for line in metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let step = line["step"].as_u64().unwrap();
        if line.get("eval/pass_at_k").is_none() {
            continue;
        }
        let checkpoint = dir.0.join(format!("checkpoints/step_{step:06}"));
        let model = store::open(&checkpoint, Dtype::F32, &Device::cpu()).unwrap().model;
        let sampled = completions(&model, &config, step, 3, sampling);
        let greedy = completions(&model, &config, step, 1, SampleOptions::greedy());
        let rewards = |of: &[Completion]| mean(of.iter().map(|c| reward_of(&c.tokens)));
        let passed = sampled.chunks(3).filter(|group| group.iter().any(|c| reward_of(&c.tokens) == 1.0));
        let cut = |c: &&Completion| c.finish_reason != FinishReason::Eos;
        for (key, want) in [
            ("reward_sampled", rewards(&sampled)),
            ("reward_greedy", rewards(&greedy)),
            ("pass_at_k", passed.count() as f64 / 4.0),
            ("rewards/quarters/mean", rewards(&sampled)),
            ("rewards/parity/mean", mean(sampled.iter().filter_map(|c| parity_of(&c.tokens)))),
            ("completions/mean_length", mean(sampled.iter().map(|c| c.tokens.len() as f64))),
            ("completions/clipped_ratio", sampled.iter().filter(cut).count() as f64 / sampled.len() as f64),
        ] {
            let got = line[format!("eval/{key}")].as_f64();
            if got != Some(want) {
                return Err(format!(
                    "gate held-out, seed 11: eval/{key} of step {step}: expected {want}, found {got:?}"
                ));
            }
        }
        compared += sampled.len() + greedy.len();
    }
    Ok(compared)
}

#[test]
fn an_evaluation_has_the_random_numbers_and_the_rewards_of_its_completions() {
    let compared = over().unwrap_or_else(|difference| panic!("{difference}"));
    assert_eq!(compared, 3 * 4 * (3 + 1), "steps 0, 2 and 4");
    println!("held-out: {compared} completions of evaluations, 0 rewards differ");
}

#[test]
fn the_last_step_is_evaluated_whatever_the_interval() {
    let config = config(&["grpo.eval_every=3", "grpo.steps=4"]);
    let dir = Scratch::new("last-evaluation");
    run(&config, &Setup::threads(1), &dir.0).unwrap();
    let text = std::fs::read_to_string(dir.0.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let evaluated = lines.filter(|line| line.get("eval/reward_greedy").is_some());
    let steps: Vec<u64> = evaluated.map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [0, 3, 4]);
}
