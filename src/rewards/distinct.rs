//! Equal completions of a prompt are scored once.
use std::collections::HashMap;

use super::error::RewardError;
use super::reward::{Reward, RewardInput, RewardRow};
use crate::decode::FinishReason;
use crate::tensor::faults::{self, Fault};

/// A completion without its index in the group: prompt, tokens, and why it ended.
type Content = (usize, Vec<u32>, FinishReason);

/// A reward that scores only one of several equal completions of a prompt; its reply is the reply to all of them.
/// Completions are equal if they have the same prompt, tokens and finish reason. For completions of one turn: the next
/// turns of equal completions may differ.
pub struct DistinctReward {
    inner: Box<dyn Reward>,
    /// The place in the batch of each completion that is scored, in the order in which `inner` gets them.
    scored: Vec<usize>,
    /// The index in `scored` of each content.
    index: HashMap<Content, usize>,
}

impl DistinctReward {
    /// Scores with `inner`.
    pub fn new(inner: Box<dyn Reward>) -> DistinctReward {
        DistinctReward { inner, scored: Vec::new(), index: HashMap::new() }
    }

    /// The index in `scored` of the completion `input` at `place` in the batch. The first of equal ones is scored.
    fn index_of(&mut self, place: usize, input: &RewardInput<'_>) -> usize {
        let next = self.scored.len();
        let index = *self.index.entry(content(input)).or_insert(next);
        if index == next {
            self.scored.push(place);
        }
        index
    }
}

impl Reward for DistinctReward {
    fn names(&self) -> &[String] {
        self.inner.names()
    }

    fn announce(&mut self, places: &[usize], inputs: &[RewardInput<'_>]) -> Result<(), RewardError> {
        let first = self.scored.len();
        let mut new = Vec::new();
        for (&place, input) in places.iter().zip(inputs) {
            if self.index_of(place, input) == first + new.len() {
                new.push(*input);
            }
        }
        let places: Vec<usize> = (first..self.scored.len()).collect();
        if places.is_empty() { Ok(()) } else { self.inner.announce(&places, &new) }
    }

    fn discard_announced(&mut self) {
        self.scored.clear();
        self.index.clear();
        self.inner.discard_announced();
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        let index: Vec<usize> = (0..).zip(batch).map(|(place, input)| self.index_of(place, input)).collect();
        let scored = std::mem::take(&mut self.scored);
        self.index.clear();
        let distinct: Vec<RewardInput<'_>> = scored.iter().map(|&place| batch[place]).collect();
        let rows = self.inner.score(&distinct)?;
        let row = |(place, (input, index)): (usize, (&RewardInput<'_>, usize))| {
            let row = rows.get(index)?.clone();
            // a completion that was scored keeps the name in its row, which the caller checks
            Some(if scored[index] == place { row } else { RewardRow { at: input.location(), ..row } })
        };
        Ok(batch.iter().zip(index).enumerate().filter_map(row).collect())
    }
}

fn content(input: &RewardInput<'_>) -> Content {
    let length = input.completion_ids.len();
    let compared = if faults::on(Fault::EndOfCompletionNotCompared) { length / 2 } else { length };
    (input.prompt_index, input.completion_ids[..compared].to_vec(), input.finish_reason)
}
