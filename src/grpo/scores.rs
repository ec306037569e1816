//! The scores of a batch of completions.
use std::ops::Range;

use crate::tensor::rng::{Purpose, uniform_u64};

/// The rewards of all completions of a batch, group by group.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scores {
    /// Each reward of each completion `[B * G][F]`. `None`: the reward does not apply.
    pub each: Vec<Vec<Option<f64>>>,
    /// The weighted sum of the rewards that apply. `None`: none applies.
    pub total: Vec<Option<f64>>,
}

impl Scores {
    /// The scores of the completions `rows`.
    pub fn part(&self, rows: Range<usize>) -> Scores {
        Scores { each: self.each[rows.clone()].to_vec(), total: self.total[rows].to_vec() }
    }

    /// Replaces the scores from completion `at` on. Returns the old ones.
    pub fn replace(&mut self, at: usize, new: Scores) -> Scores {
        let rows = at..at + new.total.len();
        Scores {
            each: self.each.splice(rows.clone(), new.each).collect(),
            total: self.total.splice(rows, new.total).collect(),
        }
    }

    /// Permutes the scores among the completions, for a planted fault. The permutation is a function of the step, and
    /// every permutation has the same probability.
    pub(super) fn shuffle(&mut self, step: u64) {
        for last in (1..self.total.len()).rev() {
            let drawn = uniform_u64(0, step, last as u32, Purpose::DataOrder);
            let other = (drawn % (last as u64 + 1)) as usize;
            self.each.swap(last, other);
            self.total.swap(last, other);
        }
    }

    /// Appends the scores of other completions.
    pub fn append(&mut self, other: Scores) {
        self.each.extend(other.each);
        self.total.extend(other.total);
    }
}
