//! A generation batch: groups of completions with their prompts.
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::scores::Scores;
use crate::decode::{Completion, FinishReason};
use crate::model::rl::Advantages;

/// A prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// The other fields of its line, which are passed to the reward.
    pub columns: Map<String, Value>,
}

/// One completion of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The address of its random numbers.
    pub id: u64,
    /// The sampled tokens.
    pub tokens: Vec<u32>,
    /// The log-probability of each token after temperature and filters: the policy's.
    pub logprobs: Vec<f32>,
    /// Its text without the end-of-text token.
    pub text: String,
    /// Why it ended.
    pub finish: FinishReason,
    /// Digest of the sampled tokens, within this process.
    digest: u64,
}

impl Sample {
    /// The sample of a completion whose text is `text`.
    pub fn new(completion: Completion, text: String) -> Sample {
        let Completion { id, tokens, processed_logprobs: logprobs, finish_reason: finish, .. } = completion;
        let digest = digest(&tokens);
        Sample { id, tokens, logprobs, text, finish, digest }
    }

    /// Whether the tokens are still the sampled ones.
    pub fn is_unchanged(&self) -> bool {
        digest(&self.tokens) == self.digest
    }

    /// Whether the completion was cut by a length limit.
    pub fn truncated(&self) -> bool {
        matches!(self.finish, FinishReason::Length | FinishReason::Context)
    }
}

fn digest(tokens: &[u32]) -> u64 {
    let mut hash = DefaultHasher::new();
    tokens.hash(&mut hash);
    hash.finish()
}

/// The completions of one prompt.
#[derive(Debug, Clone)]
pub struct Group {
    /// The index of the prompt in its file, or its number in the sequence of a task.
    pub prompt_id: u64,
    /// The prompt.
    pub prompt: Arc<Prompt>,
    /// Its completions.
    pub samples: Vec<Sample>,
}

/// All completions of a batch, group by group.
pub fn samples(groups: &[Group]) -> impl Iterator<Item = (&Group, &Sample)> {
    groups.iter().flat_map(|group| group.samples.iter().map(move |sample| (group, sample)))
}

/// A generation batch with rewards and advantages.
#[derive(Debug)]
pub struct Batch {
    /// The optimizer step that uses it first, from 1.
    pub step: u64,
    /// The groups of the update.
    pub groups: Vec<Group>,
    /// Groups that were replaced because their rewards were all equal.
    pub discarded: Vec<Group>,
    /// The rewards of the discarded groups.
    pub discarded_scores: Scores,
    /// The rewards of the groups of the update.
    pub scores: Scores,
    /// The advantages.
    pub advantages: Advantages,
    /// The digest of the weights that sampled.
    pub policy: String,
}

impl Batch {
    /// Tokens of prompts and completions, without the discarded groups.
    pub fn tokens(&self) -> usize {
        samples(&self.groups).map(|(group, sample)| group.prompt.ids.len() + sample.tokens.len()).sum()
    }
}
