//! The gate of rewards for equal completions: a program scores one of several equal completions of a prompt, each
//! completion gets the reward of its own tokens, and announcing completions changes nothing.
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use xtrain::decode::FinishReason;
use xtrain::rewards::{DistinctReward, Reward, RewardError, RewardInput, RewardReply, RewardRow};

use crate::rng::CaseRng;

/// Completions per batch; 8 per prompt.
const BATCH: usize = 32;

/// Prompt, tokens and finish reason.
type Content = (usize, Vec<u32>, FinishReason);

fn content(input: &RewardInput<'_>) -> Content {
    (input.prompt_index, input.completion_ids.to_vec(), input.finish_reason)
}

/// A number of the content: different completions have different rewards.
fn reward_of((prompt, ids, finish): &Content) -> f64 {
    let digits = ids.iter().fold(1.0, |sum, &id| 3.0 * sum + f64::from(id));
    2.0 * (64.0 * digits + *prompt as f64) + f64::from(u8::from(*finish == FinishReason::Eos))
}

/// What a [`Recorder`] was asked: announced completions with their places, and the last batch.
#[derive(Default)]
struct Asked {
    announced: Vec<(usize, Content)>,
    scored: Vec<Content>,
}

/// Rewards completions by their content and records them.
struct Recorder(Arc<Mutex<Asked>>);

impl Reward for Recorder {
    fn names(&self) -> &[String] {
        &[]
    }

    fn announce(&mut self, places: &[usize], inputs: &[RewardInput<'_>]) -> Result<(), RewardError> {
        let announced = places.iter().copied().zip(inputs.iter().map(content));
        self.0.lock().unwrap().announced.extend(announced);
        Ok(())
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        self.0.lock().unwrap().scored = batch.iter().map(content).collect();
        let row = |input: &RewardInput<'_>| {
            let reply = RewardReply::Rewards(vec![Some(reward_of(&content(input)))]);
            RewardRow { at: input.location(), reply }
        };
        Ok(batch.iter().map(row).collect())
    }
}

/// Tokens and finish reasons of a batch: 1 to 4 of 3 tokens, so that many are equal.
fn batch(rng: &mut CaseRng) -> Vec<(Vec<u32>, FinishReason)> {
    let mut completion = |_| {
        let ids = (0..rng.between(1, 5)).map(|_| rng.below(3) as u32).collect();
        (ids, [FinishReason::Eos, FinishReason::Length][rng.below(2)])
    };
    (0..BATCH).map(&mut completion).collect()
}

/// Scores 200 batches. A third of them follows announced completions that were discarded.
pub(crate) fn over() -> Result<usize, String> {
    let asked = Arc::new(Mutex::new(Asked::default()));
    let mut reward = DistinctReward::new(Box::new(Recorder(asked.clone())));
    let columns = serde_json::Map::new();
    for case in 0..200 {
        let mut rng = CaseRng::new(29, case);
        let completions = batch(&mut rng);
        let inputs: Vec<RewardInput<'_>> = (0..)
            .zip(&completions)
            .map(|(at, (ids, finish_reason))| RewardInput {
                prompt: "",
                completion: "",
                prompt_ids: &[],
                completion_ids: ids,
                columns: &columns,
                prompt_index: at / 8,
                completion_index: at % 8,
                finish_reason: *finish_reason,
                truncated: false,
                turn: None,
            })
            .collect();
        let error = |error: RewardError| error.to_string();
        if rng.below(3) == 0 {
            announce(&mut reward, &inputs, &mut rng).map_err(error)?;
            reward.discard_announced();
        }
        *asked.lock().unwrap() = Asked::default();
        announce(&mut reward, &inputs, &mut rng).map_err(error)?;
        let rows = reward.score(&inputs).map_err(error)?;
        check(&inputs, &rows, &asked.lock().unwrap())
            .map_err(|what| format!("gate equal_completions, seed 29, batch {case}: {what}"))?;
    }
    Ok(200 * BATCH)
}

/// Announces none, some or all of the completions in random order and parts.
fn announce(
    reward: &mut DistinctReward,
    inputs: &[RewardInput<'_>],
    rng: &mut CaseRng,
) -> Result<(), RewardError> {
    let mut places: Vec<usize> = (0..inputs.len()).collect();
    for i in (1..places.len()).rev() {
        places.swap(i, rng.below(i + 1));
    }
    places.truncate(rng.below(inputs.len() + 1));
    for part in places.chunks(rng.between(1, 9)) {
        let part_inputs: Vec<RewardInput<'_>> = part.iter().map(|&place| inputs[place]).collect();
        reward.announce(part, &part_inputs)?;
    }
    Ok(())
}

fn check(inputs: &[RewardInput<'_>], rows: &[RewardRow], asked: &Asked) -> Result<(), String> {
    if rows.len() != inputs.len() {
        return Err(format!("got {} rows, want {}", rows.len(), inputs.len()));
    }
    for (input, row) in inputs.iter().zip(rows) {
        let want = RewardReply::Rewards(vec![Some(reward_of(&content(input)))]);
        if row.at != input.location() || row.reply != want {
            return Err(format!("{} {:?}: got {row:?}, want {want:?}", input.location(), content(input)));
        }
    }
    let distinct: HashSet<Content> = inputs.iter().map(content).collect();
    if asked.scored.len() != distinct.len() {
        return Err(format!("{} completions scored, want {}", asked.scored.len(), distinct.len()));
    }
    match asked.announced.iter().find(|(place, content)| asked.scored.get(*place) != Some(content)) {
        None => Ok(()),
        Some((place, content)) => {
            Err(format!("{content:?} announced as completion {place}, scored at another place"))
        }
    }
}

#[test]
fn one_of_several_equal_completions_is_scored_for_all() {
    let compared = over().unwrap();
    println!("equal_completions: {compared} rewards");
}
