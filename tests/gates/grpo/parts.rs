//! The optimizer steps of a generation batch: each trains its own completions, with their advantages and the tokens that
//! the filters kept of them, and divides by its share of the batch's tokens.
use xtrain::rewards::{Reward, RewardError, RewardInput, RewardReply, RewardRow};

use super::token_counts::{lines, rollouts};
use super::{Scratch, Setup, config, run};

/// Two steps on each batch. The learning rate is too small to change a weight, so every ratio is 1, and the loss of a
/// completion is minus its advantage for each token (docs/numerics.md, section 8). Returns the number of steps.
pub(crate) fn over() -> Result<usize, String> {
    let keys = [
        "grpo.loss_type=dapo",
        "grpo.steps_per_generation=2",
        "grpo.steps=6",
        "grpo.learning_rate=1e-30",
        "grpo.top_p=0.9",
        "grpo.eval_every=0",
    ];
    let dir = Scratch::new("parts");
    run(&config(&keys), &Setup::threads(1), &dir.0)
        .map_err(|error| format!("gate parts, seed 0: {error}"))?;
    let mut steps = 0;
    for line in lines(&dir.0.join("metrics.jsonl")).iter().filter(|line| line["step"] != 0) {
        let step = line["step"].as_u64().unwrap();
        let (first, part) = (step - (step - 1) % 2, (step - 1) as usize % 2);
        let batch = rollouts(&dir.0, first);
        let ids = |row: &serde_json::Value| row["completion_ids"].as_array().unwrap().len();
        let divisor = batch.iter().map(ids).sum::<usize>() as f64 / 2.0;
        let of_row = |row: &serde_json::Value| {
            let advantage = row["advantage"].as_f64().unwrap();
            (0..ids(row)).fold(0.0, |sum, _| sum - advantage) / divisor
        };
        let rows = &batch[part * batch.len() / 2..(part + 1) * batch.len() / 2];
        let want = rows.iter().map(of_row).fold(0.0, |sum, loss| sum + loss);
        let found = line["loss"].as_f64().unwrap();
        if found.to_bits() != want.to_bits() {
            return Err(format!(
                "gate parts, seed 0: step {step}, part {part} of the batch of step {first}: expected the loss {want} \
                 ({:016x}), found {found} ({:016x})",
                want.to_bits(),
                found.to_bits()
            ));
        }
        steps += 1;
    }
    Ok(steps)
}

#[test]
fn each_step_of_a_batch_trains_its_own_part() {
    assert_eq!(over().unwrap_or_else(|e| panic!("{e}")), 6);
}

/// A constant reward for the first half of a batch.
struct SecondHalf([String; 1]);

impl Reward for SecondHalf {
    fn names(&self) -> &[String] {
        &self.0
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        let reward = |(at, input): (usize, &RewardInput<'_>)| {
            let sum: u32 = input.completion_ids.iter().sum();
            let reward = if at < batch.len() / 2 { 0.5 } else { f64::from(sum % 7) / 7.0 };
            RewardRow { at: input.location(), reply: RewardReply::Rewards(vec![Some(reward)]) }
        };
        Ok(batch.iter().enumerate().map(reward).collect())
    }
}

/// The first step of each batch has no gradient, so the second one updates the weights that sampled: it is compared
/// with the sampler. Returns the number of compared steps.
pub(crate) fn after_a_skipped_step() -> Result<usize, String> {
    let dir = Scratch::new("skipped");
    let setup = Setup { reward: || Box::new(SecondHalf(["half".to_string()])), ..Setup::threads(1) };
    run(&config(&["grpo.steps_per_generation=2"]), &setup, &dir.0).map_err(|e| e.to_string())?;
    let mut compared = 0;
    for line in lines(&dir.0.join("metrics.jsonl")).iter().filter(|line| line["step"] != 0) {
        let is_second = line["step"].as_u64().is_some_and(|step| step % 2 == 0);
        let (trained, tokens) = (&line["trained_completions"], &line["sampling/compared_tokens"]);
        if trained.as_f64().is_none_or(|n| (n > 0.0) != is_second) || tokens.is_number() != is_second {
            return Err(format!(
                "gate skipped steps, seed 0: step {}: {trained} trained completions, compared tokens: {tokens}",
                line["step"]
            ));
        }
        compared += usize::from(is_second);
    }
    Ok(compared)
}

#[test]
fn a_step_after_one_without_a_gradient_is_compared_with_the_sampler() {
    assert_eq!(after_a_skipped_step(), Ok(2));
}
