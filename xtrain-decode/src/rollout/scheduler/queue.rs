//! The waiting sequences and their order.
use std::collections::VecDeque;

use xtrain_tensor::faults::{self, Fault};

use crate::rollout::options::EngineOptions;
use crate::rollout::sequence::Sequence;

/// The waiting sequences, by rank.
///
/// The rank of a sequence is the step in which it is submitted, minus `ageing` steps for each level of priority. It does
/// not change, so the order of two sequences is fixed: a sequence of priority p runs before each sequence of priority q
/// that is submitted `ageing` (q - p) steps or more after it. None starves.
#[derive(Debug, Default)]
pub(in crate::rollout) struct WaitingQueue {
    sequences: VecDeque<Sequence>,
}

impl WaitingQueue {
    /// The rank of the `n`-th completion of a group that is submitted in step `step`.
    pub(super) fn rank(options: &EngineOptions, step: usize, priority: i32, n: usize) -> i64 {
        let steps = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let ahead = i64::from(priority).saturating_mul(steps(options.ageing));
        let ahead = if faults::on(Fault::PriorityIgnored) { 0 } else { ahead };
        let spacing = steps(n.saturating_mul(options.group_spacing));
        let step = if faults::on(Fault::PriorityNeverAges) { 0 } else { step };
        steps(step).saturating_add(spacing).saturating_sub(ahead)
    }

    /// Adds a sequence behind those of its rank that were submitted before it.
    pub(super) fn insert(&mut self, sequence: Sequence) {
        let key = |s: &Sequence| (s.rank, s.index);
        let at = self.sequences.partition_point(|s| key(s) < key(&sequence));
        self.sequences.insert(at, sequence);
    }

    /// The sequence that runs next.
    pub(super) fn front(&self) -> Option<&Sequence> {
        self.sequences.front()
    }

    pub(super) fn pop_front(&mut self) -> Option<Sequence> {
        self.sequences.pop_front()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.iter()
    }

    /// Removes the sequence of this index in the order of submission.
    pub(super) fn remove(&mut self, index: usize) -> Option<Sequence> {
        let at = self.sequences.iter().position(|s| s.index == index)?;
        self.sequences.remove(at)
    }

    pub(in crate::rollout) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }
}
