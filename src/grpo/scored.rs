//! A generation batch with its rewards.
use super::batch::{Group, samples};
use super::score::Scores;
use crate::model::rl::Advantages;

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
