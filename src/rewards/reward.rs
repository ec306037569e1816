//! The interface of rewards.
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::RewardError;
use super::index::CompletionIndex;
use crate::decode::FinishReason;

/// A completion that is to be scored.
#[derive(Debug, Clone, Copy)]
pub struct RewardInput<'a> {
    /// The text of the prompt, as the model read it.
    pub prompt: &'a str,
    /// The text of the completion, without the end-of-text token or the stop text that ends it.
    pub completion: &'a str,
    /// The tokens of the prompt.
    pub prompt_ids: &'a [u32],
    /// The tokens of the completion, with those that end it.
    pub completion_ids: &'a [u32],
    /// The columns of the prompt's JSON line except `prompt`. Empty for prompts of a built-in task.
    pub columns: &'a Map<String, Value>,
    /// The index of the prompt in the batch.
    pub prompt_index: usize,
    /// The index of the completion in the group of its prompt.
    pub completion_index: usize,
    /// Why the completion ended, or its last turn.
    pub finish_reason: FinishReason,
    /// Whether the completion was cut off: it ended at the maximum number of tokens or at the context limit, or text
    /// that was to be appended did not fit.
    pub truncated: bool,
    /// The turn of a completion that may have several. `None`: completions have one turn.
    pub turn: Option<Turn<'a>>,
}

/// The last turn of a completion.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// Its number, from 1.
    pub number: usize,
    /// The sampled text of this turn, without the end-of-text token or the stop text that ends it.
    pub text: &'a str,
    /// For each token of the completion, whether it was sampled. The others were appended.
    pub mask: &'a [bool],
    /// Whether the completion can be continued.
    pub can_append: bool,
}

impl RewardInput<'_> {
    /// Whether the completion can be continued.
    pub fn can_append(&self) -> bool {
        self.turn.is_some_and(|turn| turn.can_append)
    }

    /// The indices of the completion, for errors.
    pub fn location(&self) -> CompletionIndex {
        CompletionIndex { prompt: self.prompt_index, completion: self.completion_index }
    }
}

/// The reply to one completion.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardRow {
    /// The completion.
    pub at: CompletionIndex,
    /// The reply.
    pub reply: RewardReply,
}

/// Rewards, or text to continue with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RewardReply {
    /// One value per name. `None`: the function gives this completion no reward, and it is skipped in the sum of
    /// rewards. Values are finite.
    Rewards(Vec<Option<f64>>),
    /// Continue the completion after this text, which is not empty, and score the longer completion. Allowed if
    /// [`RewardInput::can_append`].
    Append(String),
}

/// One or more named reward functions over completions.
pub trait Reward: Send {
    /// The names of the reward functions, in the order of the columns of [`score`](Reward::score). May be empty
    /// before the first batch is scored if the implementation learns the names from it; fixed afterwards.
    fn names(&self) -> &[String];

    /// Completions of the batch that the next call of [`score`](Reward::score) scores, with their places in it. They
    /// are complete while others are still generated, so that an implementation can start to score them. Each is
    /// announced at most once; not all need to be.
    ///
    /// # Errors
    /// As [`score`](Reward::score).
    fn announce(&mut self, _places: &[usize], _inputs: &[RewardInput<'_>]) -> Result<(), RewardError> {
        Ok(())
    }

    /// No call of [`score`](Reward::score) follows for the announced completions.
    fn discard_announced(&mut self) {}

    /// The replies to `batch`: one row per completion in the order of `batch`. The caller checks that row i belongs to
    /// completion i.
    ///
    /// # Errors
    /// See [`RewardError`]. After an error the implementation may be unusable.
    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError>;
}
