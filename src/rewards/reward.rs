//! The interface of rewards.
use serde_json::{Map, Value};

use super::error::RewardError;
use super::index::CompletionIndex;
use crate::decode::FinishReason;

/// A completion that is to be scored.
#[derive(Debug, Clone, Copy)]
pub struct RewardInput<'a> {
    /// The text of the prompt, as the model read it.
    pub prompt: &'a str,
    /// The text of the completion, without its end-of-text token.
    pub completion: &'a str,
    /// The tokens of the prompt.
    pub prompt_ids: &'a [u32],
    /// The tokens of the completion, with its end-of-text token.
    pub completion_ids: &'a [u32],
    /// The columns of the prompt's JSON line except `prompt`. Empty for prompts of a built-in task.
    pub columns: &'a Map<String, Value>,
    /// The index of the prompt in the batch.
    pub prompt_index: usize,
    /// The index of the completion in the group of its prompt.
    pub completion_index: usize,
    /// Why the completion ended.
    pub finish_reason: FinishReason,
}

impl RewardInput<'_> {
    /// Whether the completion was cut off: it ended at the maximum number of new tokens or at the context limit.
    pub fn truncated(&self) -> bool {
        matches!(self.finish_reason, FinishReason::Length | FinishReason::Context)
    }

    /// The indices of the completion, for errors.
    pub fn location(&self) -> CompletionIndex {
        CompletionIndex { prompt: self.prompt_index, completion: self.completion_index }
    }
}

/// The rewards of one completion.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardRow {
    /// The completion.
    pub at: CompletionIndex,
    /// One value per name. `None`: the function gives this completion no reward, and it is skipped in the sum of
    /// rewards. Values are finite.
    pub rewards: Vec<Option<f64>>,
}

/// One or more named reward functions over completions.
pub trait Reward: Send {
    /// The names of the reward functions, in the order of the columns of [`score`](Reward::score). May be empty
    /// before the first batch is scored if the implementation learns the names from it; fixed afterwards.
    fn names(&self) -> &[String];

    /// The rewards of `batch`: one row per completion in the order of `batch`. The caller checks that row i belongs to
    /// completion i.
    ///
    /// # Errors
    /// See [`RewardError`]. After an error the implementation may be unusable.
    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError>;
}
