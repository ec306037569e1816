//! Completions with rewards: rollouts and rewards alternate until every completion has its rewards.
use super::Error;
use super::batch::Group;
use super::rollout::{GroupRequest, Rollout, RolloutModel, RolloutOptions};
use super::score::Scorer;
use super::scores::Scores;
use crate::model::tokenizer::Tokenizer;
use crate::rewards::{CompletionIndex, RewardInput, RewardReply, Turn};

/// What begins or has happened in [`generate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A turn is sampled.
    Rollout,
    /// The turns of this many completions have ended.
    Generated(usize),
    /// Rewards are computed.
    Reward,
}

/// Generates and scores all groups, in the order of the requests. Completions that a reward continues get another turn
/// and are scored again; the others are final. `progress` stops it with an error.
///
/// # Errors
/// As [`Rollout::run`], [`Rollout::append`], [`Scorer::reply`] and [`Scorer::scores`]; those of `progress`.
pub fn generate(
    sampler: RolloutModel<'_>,
    tokenizer: &Tokenizer,
    requests: Vec<GroupRequest>,
    options: &RolloutOptions,
    scorer: &mut Scorer,
    progress: &mut dyn FnMut(Progress) -> Result<(), Error>,
) -> Result<(Vec<Group>, Scores), Error> {
    let mut rollout = Rollout::new(sampler, tokenizer, requests, options)?;
    progress(Progress::Rollout)?;
    rollout.run(&mut |done| progress(Progress::Generated(done)))?;
    let mut open: Vec<CompletionIndex> = rollout.places().collect();
    let mut each: Vec<Vec<Vec<Option<f64>>>> =
        rollout.groups().iter().map(|group| vec![Vec::new(); group.samples.len()]).collect();
    loop {
        progress(Progress::Reward)?;
        let replies = reply(&rollout, tokenizer, options, scorer, &open)?;
        let mut continued = Vec::new();
        for (at, reply) in open.into_iter().zip(replies) {
            match reply {
                RewardReply::Rewards(rewards) => each[at.prompt][at.completion] = rewards,
                RewardReply::Append(text) => {
                    rollout.append(at, &text)?;
                    continued.push(at);
                }
            }
        }
        rollout.release_finished();
        if continued.is_empty() {
            return Ok((rollout.into_groups(), scorer.scores(each.into_iter().flatten().collect())?));
        }
        progress(Progress::Rollout)?;
        rollout.run(&mut |done| progress(Progress::Generated(done)))?;
        open = continued;
    }
}

/// The replies of all rewards to the completions `at`.
fn reply(
    rollout: &Rollout<'_>,
    tokenizer: &Tokenizer,
    options: &RolloutOptions,
    scorer: &mut Scorer,
    at: &[CompletionIndex],
) -> Result<Vec<RewardReply>, Error> {
    let has_turns = options.max_turns > 1;
    let text = |&at: &CompletionIndex| has_turns.then(|| rollout.sample(at).turn_text(tokenizer));
    let texts: Vec<Option<String>> = at.iter().map(text).collect();
    let pairs = at.iter().zip(&texts);
    let inputs: Vec<RewardInput<'_>> = pairs.map(|(&at, text)| input(rollout, at, text.as_deref())).collect();
    scorer.reply(&inputs)
}

/// The completion `at` as rewards read it. `text`: the sampled text of its last turn, if it may have several.
fn input<'a>(rollout: &'a Rollout<'_>, at: CompletionIndex, text: Option<&'a str>) -> RewardInput<'a> {
    let (group, sample) = (&rollout.groups()[at.prompt], rollout.sample(at));
    let turn = text.map(|text| Turn {
        number: sample.turns().len(),
        text,
        mask: &sample.mask,
        can_append: rollout.can_append(at),
    });
    RewardInput {
        prompt: &group.prompt.text,
        completion: &sample.text,
        prompt_ids: &group.prompt.ids,
        completion_ids: &sample.tokens,
        columns: &group.prompt.columns,
        prompt_index: at.prompt,
        completion_index: at.completion,
        finish_reason: sample.finish,
        truncated: sample.truncated(),
        turn,
    }
}
