//! Errors of a run of reinforcement learning.
use crate::model::store::StoreError;

/// An error that ends a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rollout failed.
    #[error(transparent)]
    Decode(#[from] crate::decode::Error),
    /// A forward pass, a backward pass or an update failed.
    #[error(transparent)]
    Model(#[from] crate::model::Error),
    /// A reward failed.
    #[error(transparent)]
    Reward(#[from] crate::rewards::RewardError),
    /// Saving a checkpoint failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Writing a log failed.
    #[error(transparent)]
    Run(#[from] crate::run::Error),
    /// Advantages or the policy loss could not be computed.
    #[error(transparent)]
    Objective(#[from] crate::model::rl::RlError),
    /// A prompt cannot be encoded.
    #[error(transparent)]
    Tokenizer(#[from] crate::model::tokenizer::TokenizerError),
    /// The observer stopped the run.
    #[error("interrupted")]
    Interrupted,
    /// The task has no training prompts.
    #[error("the task has no training prompts")]
    NoPrompts,
    /// A wrong number of reward weights.
    #[error("grpo.reward_weights: expected {} weights, one for each of {}, found {found}", names.len(), names.join(", "))]
    RewardWeights {
        /// The names of the rewards.
        names: Vec<String>,
        /// The number of weights.
        found: usize,
    },
    /// Two rewards have one name.
    #[error("two rewards have the name {name:?}")]
    RewardNames {
        /// The name.
        name: String,
    },
    /// A forward pass for values and the backward pass gave different log-probabilities.
    #[error("prompt {prompt}: the forward pass of the update gives other log-probabilities than the pass before it")]
    Unstable {
        /// The prompt.
        prompt: u64,
    },
    /// A prompt cannot be used.
    #[error("prompt {prompt}: expected 1 to {max} tokens, found {found}")]
    PromptLength {
        /// The index of the prompt.
        prompt: u64,
        /// The longest prompt.
        max: usize,
        /// Its length.
        found: usize,
    },
    /// The trainer's log-probability of a token differs from the sampler's.
    #[error(
        "prompt {prompt}, completion {sample_id}, token {token}: the trainer's log-probability {trainer} differs from \
         the sampler's {sampler}{cause}"
    )]
    Mismatch {
        /// The index of the prompt.
        prompt: u64,
        /// The id of the completion.
        sample_id: u64,
        /// The index of the token in the completion.
        token: usize,
        /// The sampler's value.
        sampler: f32,
        /// The trainer's value.
        trainer: f32,
        /// The cause, if it is known.
        cause: &'static str,
    },
}
