//! The rows of the loss. Targets of branches with the same row, token and kept set share a loss row.
use std::collections::HashMap;
use std::ops::Range;

use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{KeptSet, LossRows, Samples, Target};

use crate::example::{LogitsProcessing, TrainingExample};

/// The targets of the examples so far, and their loss rows.
#[derive(Default)]
pub(super) struct LossPart {
    /// The targets of each example, then those of its branches.
    pub(super) targets: Vec<Option<Target>>,
    /// The loss row of each target.
    loss_rows: Vec<u32>,
    /// By loss row: its row in the forward pass, its target with the sums of weights and bonuses, its given kept set.
    pub(super) rows: Vec<u32>,
    sums: Vec<Option<Target>>,
    kept: Vec<Option<KeptSet>>,
    /// Whether any kept set is given.
    has_kept: bool,
    /// The loss rows of each example.
    samples: Samples,
}

impl LossPart {
    /// Adds the targets of an example without branches, whose rows are `rows`.
    pub(super) fn push_rows(&mut self, example: &TrainingExample, rows: Range<u32>) {
        self.samples.push(rows.len());
        self.loss_rows.extend((self.rows.len() as u32..).take(example.targets.len()));
        self.targets.extend(&example.targets);
        self.has_kept |= example.kept.iter().any(Option::is_some);
        self.kept.extend(example.kept.iter().cloned());
        self.rows.extend(rows);
        self.kept.resize(self.rows.len(), None);
    }

    /// Adds the targets of the branches of an example. Target t of branch b is predicted by row `rows[b][t]`.
    pub(super) fn push_tree(&mut self, example: &TrainingExample, rows: &[Vec<u32>]) {
        let first = self.rows.len();
        let mut known: HashMap<(u32, Option<u32>), Vec<u32>> = HashMap::new();
        for (branch, rows) in example.branches.iter().zip(rows) {
            for (t, (&target, &row)) in branch.targets.iter().zip(rows).enumerate() {
                let kept = branch.kept.get(t).unwrap_or(&None);
                self.has_kept |= kept.is_some();
                let any = faults::on(Fault::SharedLossRowOfOtherTarget);
                let id = target.map(|target| if any { 0 } else { target.id });
                let candidates = known.entry((row, id)).or_default();
                let any = faults::on(Fault::SharedLossRowOfOtherKeptSet);
                let found = candidates.iter().copied().find(|&at| any || self.kept[at as usize] == *kept);
                let at = found.unwrap_or(self.rows.len() as u32);
                if found.is_none() {
                    candidates.push(at);
                    self.rows.push(row);
                    self.kept.push(kept.clone());
                }
                self.targets.push(target);
                self.loss_rows.push(at);
            }
        }
        self.samples.push(self.rows.len() - first);
    }

    /// Computes the weight and the bonus of each loss row: the sums of those of its targets, in their order.
    pub(super) fn add_weights(&mut self) {
        self.sums.clear();
        self.sums.resize(self.rows.len(), None);
        for (target, &at) in self.targets.iter().zip(&self.loss_rows) {
            match (&mut self.sums[at as usize], target) {
                (Some(sum), Some(target)) => {
                    let dropped = |fault| if faults::on(fault) { 0.0 } else { 1.0 };
                    sum.weight += target.weight * dropped(Fault::SharedLossWeightDropped);
                    sum.bonus += target.bonus * dropped(Fault::SharedLossBonusDropped);
                }
                (sum @ None, target) => *sum = *target,
                (Some(_), None) => {}
            }
        }
    }

    /// The operands of the loss.
    pub(super) fn operands(&self, processing: LogitsProcessing) -> LossRows<'_> {
        let LogitsProcessing { temperature, top_k, top_p, min_p } = processing;
        let rows = LossRows::new(&self.sums, &self.samples);
        let kept = if self.has_kept { &self.kept[..] } else { &[] };
        LossRows { temperature, top_k, top_p, min_p, kept, ..rows }
    }

    /// The values of each target from those of each loss row. None if there are no values.
    pub(super) fn per_target<T: Clone>(&self, values: &[T]) -> Vec<T> {
        let value = |&at: &u32| values.get(at as usize).cloned();
        self.loss_rows.iter().filter_map(value).collect()
    }
}
