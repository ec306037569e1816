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
    /// Turns have ended.
    Generated,
    /// Rewards are computed.
    Reward,
}

/// Generates and scores all groups, in the order of the requests. Each of several processes generates a part of the
/// groups, the first one scores all of them, and every process returns all. Completions that a reward continues get
/// another turn and are scored again; the others are final. Rewards may start to score a completion while others are
/// sampled. `progress` stops it with an error.
///
/// # Errors
/// As [`Rollout::step`], [`Rollout::append`], [`Scorer::announce`], [`Scorer::reply`] and [`Scorer::scores`]; those of
/// `progress`.
pub fn generate(
    sampler: RolloutModel<'_>,
    tokenizer: &Tokenizer,
    requests: Vec<GroupRequest>,
    options: &RolloutOptions,
    scorer: &mut Scorer,
    progress: &mut dyn FnMut(Progress) -> Result<(), Error>,
) -> Result<(Vec<Group>, Scores), Error> {
    // those of a call that ended with an error
    scorer.discard_announced();
    let sizes: Vec<usize> = requests.iter().map(|request| request.size).collect();
    let mut rollout = Rollout::new(sampler, tokenizer, requests, options)?;
    let mut open: Vec<CompletionIndex> = rollout.places().collect();
    let mut each: Vec<Vec<Vec<Option<f64>>>> = sizes.iter().map(|&size| vec![Vec::new(); size]).collect();
    loop {
        progress(Progress::Rollout)?;
        let ended = sample_turns(&mut rollout, &open, scorer, progress);
        rollout.exchange(ended)?;
        progress(Progress::Reward)?;
        let inputs = Inputs::new(&rollout, &open);
        let replies = scorer.reply(&inputs.all(&rollout), rollout.comm())?;
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
        open = continued;
    }
}

/// Samples the turns of the completions `open` that belong to this process. Announces each that has ended.
fn sample_turns(
    rollout: &mut Rollout<'_>,
    open: &[CompletionIndex],
    scorer: &mut Scorer,
    progress: &mut dyn FnMut(Progress) -> Result<(), Error>,
) -> Result<(), Error> {
    while let Some(ended) = rollout.step()? {
        let place = |at| open.binary_search(at).expect("each completion whose turn runs is open");
        let places: Vec<usize> = ended.iter().map(place).collect();
        let inputs = Inputs::new(rollout, &ended);
        scorer.announce(&places, &inputs.all(rollout))?;
        progress(Progress::Generated)?;
    }
    Ok(())
}

/// Completions as rewards read them.
struct Inputs<'a> {
    at: &'a [CompletionIndex],
    /// The sampled text of the last turn of each, if it may have several.
    texts: Vec<Option<String>>,
}

impl<'a> Inputs<'a> {
    fn new(rollout: &Rollout<'_>, at: &'a [CompletionIndex]) -> Inputs<'a> {
        Inputs { at, texts: at.iter().map(|&at| rollout.turn_text(at)).collect() }
    }

    fn all<'s>(&'s self, rollout: &'s Rollout<'_>) -> Vec<RewardInput<'s>> {
        let pairs = self.at.iter().zip(&self.texts);
        pairs.map(|(&at, text)| input(rollout, at, text.as_deref())).collect()
    }
}

/// The completion `at` as rewards read it. `text`: the sampled text of its last turn, if it may have several.
fn input<'a>(rollout: &'a Rollout<'_>, at: CompletionIndex, text: Option<&'a str>) -> RewardInput<'a> {
    let (prompt, sample) = (rollout.prompt(at.prompt), rollout.sample(at));
    let turn = text.map(|text| Turn {
        number: sample.turns().len(),
        text,
        mask: &sample.mask,
        can_append: rollout.can_append(at),
    });
    RewardInput {
        prompt: &prompt.text,
        completion: &sample.text,
        prompt_ids: &prompt.ids,
        completion_ids: &sample.tokens,
        columns: &prompt.columns,
        prompt_index: at.prompt,
        completion_index: at.completion,
        finish_reason: sample.finish,
        truncated: sample.truncated(),
        turn,
    }
}
