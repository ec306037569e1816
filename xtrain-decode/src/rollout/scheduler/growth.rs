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

/// The most pages that the sequences take together at a time, less those that have become free by then. All get one
/// token in a step. For n sequences that end at e times: O(n log n + e page).
pub(super) fn peak(all: &mut [Growth], page: usize) -> usize {
    all.sort_unstable_by_key(|growth| std::cmp::Reverse(growth.left));
    let mut most = 0;
    let mut freed: usize = all.iter().map(|growth| growth.own).sum();
    let mut running = Running::new(page);
    for (at, growth) in all.iter().enumerate() {
        freed -= growth.own;
        if faults::on(Fault::GrowthOfOneSequence) {
            running = Running::new(page);
        }
        running.add(growth);
        // the last one of those that end at the same time
        if all.get(at + 1).is_none_or(|next| next.left != growth.left) {
            most = most.max(running.pages(growth.left).saturating_sub(freed));
        }
    }
    most
}

/// Sequences that run at the same time.
struct Running {
    page: usize,
    missing: usize,
    /// The number of sequences for each number of tokens in a last page that is not full; 0: all pages are full.
    last_page: Vec<usize>,
}

impl Running {
    fn new(page: usize) -> Running {
        Running { page, missing: 0, last_page: vec![0; page] }
    }

    fn add(&mut self, sequence: &Growth) {
        self.missing += sequence.missing;
        self.last_page[sequence.len % self.page] += 1;
    }

    /// Pages that they take until each has `more` further tokens.
    fn pages(&self, more: usize) -> usize {
        let further = |tokens: usize| (tokens + more).div_ceil(self.page) - usize::from(tokens > 0);
        let counts = self.last_page.iter().enumerate();
        self.missing + counts.map(|(tokens, n)| n * further(tokens)).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_tensor::rng::{Purpose, draw};

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
    fn the_peak_of_random_sequences_is_the_maximum_over_the_steps() {
        let mut word = 0;
        let mut below = |n: u32| {
            word += 1;
            (draw(7, 0, word, Purpose::DataOrder)[0] % n) as usize
        };
        for _ in 0..200 {
            let page = 1 + below(9);
            let mut draw =
                |_| Growth { len: 1 + below(30), left: below(20), missing: below(3), own: below(4) };
            let mut all: Vec<Growth> = (0..12).map(&mut draw).collect();
            let pages =
                |g: &Growth, step: usize| g.missing + (g.len + step).div_ceil(page) - g.len.div_ceil(page);
            let taken = |step: usize| -> usize {
                let (runs, ended): (Vec<&Growth>, Vec<&Growth>) = all.iter().partition(|g| g.left >= step);
                let freed: usize = ended.iter().map(|g| g.own).sum();
                runs.iter().map(|g| pages(g, step)).sum::<usize>().saturating_sub(freed)
            };
            let want = (0..20).map(taken).max();
            assert_eq!(Some(peak(&mut all, page)), want, "page {page}, {all:?}");
        }
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
