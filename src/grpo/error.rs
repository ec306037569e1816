//! Errors of a run of reinforcement learning.
use crate::model::store::StoreError;
use crate::report::units::many;
use crate::rewards::CompletionIndex;

/// An error that ends a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine failed. [`Grpo::run`](super::Grpo::run) returns [`Error::Rollout`] instead.
    #[error(transparent)]
    Decode(#[from] crate::decode::Error),
    /// The engine failed in the rollouts or the evaluation before the end of a step.
    #[error("step {step}: {error}")]
    Rollout {
        /// The step that is not complete.
        step: u64,
        /// The error of the engine.
        error: crate::decode::Error,
    },
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
    /// Another process has ended.
    #[error(transparent)]
    Communication(#[from] crate::model::comm::Error),
    /// Comparing a group with the training forward pass failed.
    #[error(transparent)]
    VerifyFailed(#[from] crate::verify::Error),
    /// A value of a group differs from that of the training forward pass.
    #[error("step {step}: a rollout differs from the training forward pass, first at {first}")]
    Verify {
        /// The step.
        step: u64,
        /// The first difference.
        first: String,
    },
    /// A prompt cannot be encoded.
    #[error(transparent)]
    Tokenizer(#[from] crate::model::tokenizer::TokenizerError),
    /// An error of the caller's own [`GrpoObserver`](super::GrpoObserver).
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// The observer stopped the run.
    #[error("interrupted")]
    Interrupted,
    /// The task has no training prompts, or the list of prompts is empty.
    #[error("there are no training prompts")]
    NoPrompts,
    /// A setting is outside its range.
    #[error(transparent)]
    Config(Box<crate::config::Error>),
    /// A prompt of a list has no token or too many.
    #[error("prompt {prompt}: expected {want}, found {found}")]
    PromptLength {
        /// The index of the prompt.
        prompt: usize,
        /// The expected number of tokens.
        want: String,
        /// The number found.
        found: usize,
    },
    /// There is no reference model for the KL term.
    #[error("grpo.beta = {beta}: expected a reference model (Grpo::reference), found none")]
    NoReference {
        /// The weight of the KL term.
        beta: f64,
    },
    /// A wrong number of reward weights.
    #[error("grpo.reward_weights: expected {}, one for each of {}, found {found}", many(names.len() as u64, "weight"), names.join(", "))]
    RewardWeights {
        /// The names of the rewards.
        names: Vec<String>,
        /// The number of weights.
        found: usize,
    },
    /// Two rewards have one name.
    #[error("rewards {} and {}: expected different names, found {name:?} in both", rewards[0] + 1, rewards[1] + 1)]
    RewardNames {
        /// The name.
        name: String,
        /// The indices of the two rewards.
        rewards: [usize; 2],
    },
    /// The tokens of a completion are not those that were sampled.
    #[error(
        "prompt {prompt}, completion {sample_id}: its tokens changed after they were sampled; text must not be encoded again"
    )]
    TokensChanged {
        /// The prompt.
        prompt: u64,
        /// The id of the completion.
        sample_id: u64,
    },
    /// The weights are not those that sampled the completions.
    #[error(
        "step {step}: the weights changed between the rollouts and the update: {policy} sampled, {found} is updated"
    )]
    WeightsChanged {
        /// The step.
        step: u64,
        /// The digest of the weights that sampled.
        policy: String,
        /// The digest of the weights of the update.
        found: String,
    },
    /// The update processes logits in another way than the sampler.
    #[error("the update processes logits as {found}, the rollouts as {want}")]
    FiltersDiffer {
        /// The sampling options of the rollouts.
        want: String,
        /// Those of the update.
        found: String,
    },
    /// A reward belongs to another completion.
    #[error("reward {reward:?}: expected the rewards of {want}, found those of {found}")]
    RewardOrder {
        /// The name of the reward.
        reward: String,
        /// The completion.
        want: CompletionIndex,
        /// The completion whose rewards were returned.
        found: CompletionIndex,
    },
    /// A reward returned a wrong number of rows or values.
    #[error("reward {reward:?}: expected {want} {of}, found {found}")]
    RewardCount {
        /// The name of the reward.
        reward: String,
        /// What was counted.
        of: &'static str,
        /// The expected number.
        want: usize,
        /// The number found.
        found: usize,
    },
    /// A reward continues a completion in a way that is not possible.
    #[error("{at}: expected {want}, found {found}")]
    Append {
        /// The completion.
        at: CompletionIndex,
        /// What the reply must be.
        want: &'static str,
        /// What it is.
        found: String,
    },
    /// A forward pass for values and the backward pass gave different log-probabilities.
    #[error(
        "prompt {prompt}: the forward pass of the update gives other log-probabilities than the pass before it"
    )]
    Unstable {
        /// The prompt.
        prompt: u64,
    },
    /// The trainer's log-probability of a token differs from the sampler's.
    #[error(
        "prompt {prompt}, completion {sample_id}, token {token}: the trainer's log-probability {trainer} differs from \
         the sampler's {sampler}"
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
    },
}

impl From<crate::config::Error> for Error {
    fn from(error: crate::config::Error) -> Error {
        Error::Config(Box::new(error))
    }
}
