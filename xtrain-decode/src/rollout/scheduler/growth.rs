//! The pages that sequences will take until they end.
use xtrain_tensor::faults::{self, Fault};

use crate::rollout::completion::FinishReason;

/// What finished sequences tell about the length of others.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FinishedLengths {
    /// New tokens of finished sequences.
    tokens: usize,
    /// Sequences that finished before they reached their length.
    ended: usize,
}

impl FinishedLengths {
    pub(super) fn record(&mut self, new_tokens: usize, reason: FinishReason) {
        self.tokens += new_tokens;
        self.ended += usize::from(matches!(reason, FinishReason::Eos | FinishReason::Stop));
    }

    /// The expected number of further tokens of a sequence without a limit, if each new token is equally likely to be
    /// its last: all new tokens so far, `running` of them of running sequences, for each one that was the last.
    pub(super) fn expected(self, running: usize) -> usize {
        (self.tokens + running).checked_div(self.ended).map_or(usize::MAX, |tokens| tokens.max(1))
    }
}

/// The pages of a sequence from now until it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Growth {
    /// Its tokens so far.
    pub(super) len: usize,
    /// Further tokens until it ends.
    pub(super) left: usize,
    /// Pages that it takes for its tokens so far.
    pub(super) missing: usize,
    /// Pages that it has alone. They become free when it ends.
    pub(super) own: usize,
}

impl Growth {
    /// Pages that it takes until it has `more` further tokens.
    fn pages(&self, more: usize, page: usize) -> usize {
        self.missing + (self.len + more).div_ceil(page) - self.len.div_ceil(page)
    }
}

/// The most pages that the sequences take together at a time, less those that have become free by then. All get one
/// token in a step.
pub(super) fn peak(all: &mut [Growth], page: usize) -> usize {
    all.sort_unstable_by_key(|growth| std::cmp::Reverse(growth.left));
    let mut most = 0;
    let mut freed: usize = all.iter().map(|growth| growth.own).sum();
    for at in 0..all.len() {
        let left = all[at].left;
        freed -= all[at].own;
        // the last one of those that end at the same time
        if all.get(at + 1).is_some_and(|next| next.left == left) {
            continue;
        }
        let taken: usize = all[..=at].iter().map(|growth| growth.pages(left, page)).sum();
        let end = if faults::on(Fault::GrowthOfOneSequence) { all[at].pages(left, page) } else { taken };
        most = most.max(end.saturating_sub(freed));
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(len: usize, left: usize, own: usize) -> Growth {
        Growth { len, left, missing: 0, own }
    }

    #[test]
    fn the_peak_is_at_the_end_of_a_sequence_and_counts_whole_pages() {
        let peak = |all: &[Growth]| super::peak(&mut all.to_vec(), 4);
        assert_eq!(peak(&[]), 0);
        assert_eq!(peak(&[growth(3, 1, 1)]), 0);
        assert_eq!(peak(&[growth(3, 2, 1)]), 1);
        assert_eq!(peak(&[growth(4, 8, 1), growth(4, 8, 1)]), 4);
        // the pages of the first are free when the second grows
        assert_eq!(peak(&[growth(8, 1, 2), growth(8, 9, 2)]), 2);
        assert_eq!(peak(&[growth(8, 1, 0), growth(8, 9, 2)]), 3);
        assert_eq!(peak(&[Growth { missing: 2, ..growth(8, 0, 0) }]), 2);
    }

    #[test]
    fn tokens_so_far_for_each_end_are_expected() {
        let mut lengths = FinishedLengths::default();
        assert_eq!(lengths.expected(1000), usize::MAX);
        lengths.record(48, FinishReason::Length);
        assert_eq!(lengths.expected(1000), usize::MAX);
        lengths.record(2, FinishReason::Eos);
        lengths.record(10, FinishReason::Stop);
        assert_eq!((lengths.expected(40), lengths.expected(0)), (50, 30));
    }
}
