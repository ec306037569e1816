//! The waiting sequences and their order.
use std::collections::{BTreeMap, HashMap};

use xtrain_tensor::faults::{self, Fault};

use crate::rollout::options::EngineOptions;
use crate::rollout::sequence::Sequence;

/// The waiting sequences, by rank and then by index, the oldest first.
///
/// The rank of a sequence is the step in which it is submitted, minus `ageing` steps for each level of priority. It
/// does not change, so the order of two sequences is fixed: a sequence of priority p runs before each sequence of
/// priority q >= p that is submitted `ageing` (q - p) steps or more after it. No sequence starves.
#[derive(Debug, Default)]
pub(in crate::rollout) struct WaitingQueue {
    sequences: BTreeMap<(i64, usize), Sequence>,
    /// The rank of each sequence, by its index.
    ranks: HashMap<usize, i64>,
}

impl WaitingQueue {
    /// The rank of a sequence that is submitted in step `step`.
    pub(super) fn rank(options: &EngineOptions, step: usize, priority: i32) -> i64 {
        let steps = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let ahead = i64::from(priority).saturating_mul(steps(options.ageing));
        let ahead = if faults::on(Fault::PriorityIgnored) { 0 } else { ahead };
        let step = if faults::on(Fault::PriorityNeverAges) { 0 } else { step };
        steps(step).saturating_sub(ahead)
    }

    /// Adds a sequence behind those of its rank that were submitted before it.
    pub(super) fn insert(&mut self, sequence: Sequence) {
        self.ranks.insert(sequence.index, sequence.rank);
        self.sequences.insert((sequence.rank, sequence.index), sequence);
    }

    /// The sequence that runs next.
    pub(super) fn front(&self) -> Option<&Sequence> {
        self.sequences.first_key_value().map(|(_, sequence)| sequence)
    }

    pub(super) fn pop_front(&mut self) -> Option<Sequence> {
        let (_, sequence) = self.sequences.pop_first()?;
        self.ranks.remove(&sequence.index);
        Some(sequence)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.values()
    }

    /// Removes the sequence of this index in the order of submission.
    pub(super) fn remove(&mut self, index: usize) -> Option<Sequence> {
        let rank = self.ranks.remove(&index)?;
        self.sequences.remove(&(rank, index))
    }

    pub(in crate::rollout) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_priority_is_never_behind_a_lower_one_of_the_same_step() {
        for ageing in [0, 1, 7, usize::MAX / 2, usize::MAX] {
            let options = EngineOptions { ageing, ..EngineOptions::default() };
            let priorities = [i32::MIN, -3, -2, -1, 0, 1, 2, 3, i32::MAX];
            for step in [0, 5, usize::MAX] {
                let ranks = priorities.map(|priority| WaitingQueue::rank(&options, step, priority));
                assert!(
                    ranks.is_sorted_by(|low, high| low >= high),
                    "ageing {ageing}, step {step}: {ranks:?}"
                );
            }
        }
    }
}
