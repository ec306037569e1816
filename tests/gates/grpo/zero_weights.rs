//! Completions whose loss weights are all zero are left out of an update, which does not change a bit.
use xtrain::config::RunConfig;
use xtrain::decode::{EngineOptions, KvMemory};
use xtrain::grpo::batch::{Group, samples};
use xtrain::grpo::examples::Weighted;
use xtrain::grpo::from_config;
use xtrain::grpo::prompts::PromptSource;
use xtrain::grpo::rollout::{GroupRequest, Rollout, RolloutModel};
use xtrain::grpo::update::{Policy, StepInput, Updater};
use xtrain::model::comm::SingleProcess;
use xtrain::model::rl::{PolicyOutput, PolicyRow};
use xtrain::model::tasks::Sums;
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Branch, Model, Trainer, TrainingExample};
use xtrain::tensor::Device;
use xtrain::tensor::ops::Target;
use xtrain::training;

use super::config;
use crate::gpu::{compare, state};

/// Completions per group.
const GROUP: usize = 4;
/// Advantages of three groups. The second group has no spread.
pub(super) const ADVANTAGES: [f64; 12] = [0.75, -1.25, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, -0.5, 1.5, -1.0, 0.0];

pub(super) fn trainer(config: &RunConfig) -> Trainer {
    let section = config.grpo.as_ref().unwrap();
    let cfg = training::model_config(config, Tokenizer::byte().vocab_size());
    let compute = training::compute(config.train.dtype);
    let model = Model::init(&cfg, compute, &Device::cpu(), 0).unwrap();
    let (optim, schedule) = (from_config::optim_config(section), from_config::schedule(section));
    let mut trainer = Trainer::new(model, optim, schedule).unwrap();
    trainer.shards = config.train.shards;
    trainer
}

pub(super) fn groups(config: &RunConfig, model: &Model) -> Vec<Group> {
    let (tokenizer, task) = (Tokenizer::byte(), Sums::default());
    let prompts = PromptSource::task(&task, &tokenizer, 0);
    let request = |at: usize| {
        let (prompt_id, prompt) = prompts.at(at as u64).unwrap();
        GroupRequest { prompt_id, prompt, first_id: (at * GROUP) as u64, size: GROUP }
    };
    let requests = (0..ADVANTAGES.len() / GROUP).map(request).collect();
    let options = from_config::rollout_options(config.grpo.as_ref().unwrap(), 0, EngineOptions::default());
    let mut memory = KvMemory::default();
    let sampler = RolloutModel { model, memory: &mut memory, comm: &SingleProcess };
    let mut rollout = Rollout::new(sampler, &tokenizer, requests, &options).unwrap();
    while rollout.step().unwrap().is_some() {}
    rollout.into_groups()
}

fn weighted(groups: &[Group]) -> Vec<Weighted<'_>> {
    let weighted =
        |((group, sample), advantage)| Weighted { group, sample, advantage, reference: None, kept: &[] };
    samples(groups).zip(ADVANTAGES).map(weighted).collect()
}

/// The loss weights of a step with the weights that sampled.
fn weights(updater: &Updater, completions: &[Weighted<'_>], loss_tokens: f64) -> PolicyOutput {
    let logp: Vec<Vec<f64>> =
        completions.iter().map(|c| c.sample.logprobs.iter().map(|&x| f64::from(x)).collect()).collect();
    let (zeros, masks): (Vec<_>, Vec<_>) =
        logp.iter().map(|row| (vec![0.0; row.len()], vec![true; row.len()])).unzip();
    let row = |at: usize| PolicyRow {
        logp: &logp[at],
        old: &logp[at],
        reference: None,
        sampler: None,
        entropy: Some(&zeros[at]),
        mask: &masks[at],
        advantage: completions[at].advantage,
        truncated: false,
    };
    let rows: Vec<PolicyRow<'_>> = (0..completions.len()).map(row).collect();
    updater.loss.evaluate_part(&rows, loss_tokens).unwrap()
}

/// The training examples of all completions, also of those without a weight. `None`: all weights are 0.
pub(super) fn examples(
    updater: &Updater,
    completions: &[Weighted<'_>],
    output: Option<&PolicyOutput>,
) -> Vec<TrainingExample> {
    let targets = |at: usize| {
        let target = move |(t, &id): (usize, &u32)| {
            let of = |values: &[Vec<f64>]| values[at][t] as f32;
            let (weight, bonus) = output.map_or((0.0, 0.0), |o| (of(&o.weights), of(&o.bonus)));
            Some(Target { id, weight, bonus })
        };
        completions[at].sample.tokens.iter().enumerate().map(target)
    };
    let inputs = |at: usize| {
        let tokens = &completions[at].sample.tokens;
        tokens[..tokens.len() - 1].to_vec()
    };
    let alone = |at: usize| {
        let prompt = &completions[at].group.prompt.ids;
        TrainingExample {
            inputs: [prompt.clone(), inputs(at)].concat(),
            targets: vec![None; prompt.len() - 1].into_iter().chain(targets(at)).collect(),
            ..TrainingExample::default()
        }
    };
    let branch = |at: usize| Branch { inputs: inputs(at), targets: targets(at).collect(), kept: Vec::new() };
    let together = |first: usize| TrainingExample {
        inputs: completions[first].group.prompt.ids.clone(),
        branches: (first..first + updater.examples.shared).map(branch).collect(),
        ..TrainingExample::default()
    };
    match updater.examples.shared {
        1 => (0..completions.len()).map(alone).collect(),
        _ => (0..completions.len()).step_by(updater.examples.shared).map(together).collect(),
    }
}

/// A step of shards, for the fault of its division.
pub(crate) fn sharded() -> Result<usize, String> {
    let trained = ADVANTAGES.iter().filter(|advantage| **advantage != 0.0).count();
    let alone = ["grpo.prompt_sharing=1", "train.shards=3", "grpo.micro_batch=2"];
    let together = ["train.shards=2"];
    Ok(checked(&alone, trained)? + checked(&together, ADVANTAGES.len() - GROUP)?)
}

#[track_caller]
fn check(keys: &[&str], want_trained: usize) {
    checked(keys, want_trained).unwrap_or_else(|e| panic!("{e}"));
}

/// Compares a step on all completions, on the groups with spread, and a backward pass over all completions.
fn checked(keys: &[&str], want_trained: usize) -> Result<usize, String> {
    let config = config(keys);
    let section = config.grpo.as_ref().unwrap();
    let updater = from_config::updater(section);
    let groups = groups(&config, &trainer(&config).model);
    let all = weighted(&groups);
    let loss_tokens = all.iter().map(|c| c.sample.tokens.len()).sum::<usize>() as f64;
    let step = |completions: &[Weighted<'_>]| {
        let mut trainer = trainer(&config);
        let input = StepInput { completions, policy: Policy::Sampling, loss_tokens, new_tokens: 0 };
        let report = updater.step(&mut trainer, &input).unwrap();
        assert_eq!(report.trained, want_trained, "{keys:?}");
        state(&trainer)
    };
    let mut whole = trainer(&config);
    let weights = weights(&updater, &all, loss_tokens);
    let examples = examples(&updater, &all, Some(&weights));
    let gradient = whole.gradient(&examples, updater.processing(), section.micro_batch).unwrap();
    whole.apply(gradient, 0).unwrap();
    let want = state(&whole);
    assert!(want != state(&trainer(&config)), "the step changes the weights");
    let what = format!("gate grpo, seed 0: {keys:?}: with completions without a weight");
    let mut n = compare(&step(&all), &want, &what)?;
    // a step without a group is divided into other shards
    if want_trained < all.len() && config.train.shards == 1 {
        let some = [&all[..GROUP], &all[2 * GROUP..]].concat();
        let what = format!("gate grpo, seed 0: {keys:?}: without a group without spread");
        n += compare(&step(&some), &want, &what)?;
    }
    Ok(n)
}

#[test]
fn completions_without_a_weight_count_in_the_division_into_shards() {
    sharded().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn completions_without_a_weight_do_not_change_the_bits_of_an_update() {
    let trained = ADVANTAGES.iter().filter(|advantage| **advantage != 0.0).count();
    check(&["grpo.prompt_sharing=1"], trained);
    check(&["grpo.prompt_sharing=1", "grpo.micro_batch=3", "grpo.temperature=1.3"], trained);
    // completions that share their prompt are left out together
    check(&[], ADVANTAGES.len() - GROUP);
    // the entropy bonus gives every completion a weight
    check(&["grpo.entropy_coef=0.01"], ADVANTAGES.len());
}
