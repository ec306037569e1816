//! The examples of a step that have a gradient, among all samples of the step.
use std::ops::Range;

use crate::example::TrainingExample;
use crate::shards::shard_samples;

/// Some of the samples of a step. The others have a gradient of zero: they are not computed, but they count where the
/// samples are divided into shards, so leaving them out does not change a bit.
#[derive(Debug, Clone)]
pub struct StepExamples<'a> {
    examples: &'a [TrainingExample],
    /// The number of each example in the step.
    numbers: Vec<usize>,
    samples: usize,
}

impl<'a> StepExamples<'a> {
    /// All samples of a step.
    pub fn all(examples: &'a [TrainingExample]) -> StepExamples<'a> {
        StepExamples { examples, numbers: (0..examples.len()).collect(), samples: examples.len() }
    }

    /// The examples of a step of `samples` samples. `numbers`: the number of each among the samples, ascending.
    ///
    /// # Panics
    /// If there is not one number per example, or if they do not ascend below `samples`.
    pub fn some(examples: &'a [TrainingExample], numbers: Vec<usize>, samples: usize) -> StepExamples<'a> {
        assert_eq!(numbers.len(), examples.len(), "one number per example");
        let ascend = numbers.is_sorted_by(|a, b| a < b) && numbers.last().is_none_or(|&last| last < samples);
        assert!(ascend, "ascending numbers of samples of the step");
        StepExamples { examples, numbers, samples }
    }

    pub(crate) fn examples(&self) -> &'a [TrainingExample] {
        self.examples
    }

    /// The examples of shard `shard` of `shards`.
    pub(crate) fn of_shard(&self, shards: usize, shard: usize) -> Range<usize> {
        let samples = shard_samples(self.samples, shards, shard);
        let first = |sample: usize| self.numbers.partition_point(|&number| number < sample);
        first(samples.start)..first(samples.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_are_left_out_count_in_the_division() {
        let examples = vec![TrainingExample::default(); 3];
        let some = StepExamples::some(&examples, vec![0, 4, 5], 6);
        assert_eq!([0, 1, 2].map(|shard| some.of_shard(3, shard)), [0..1, 1..1, 1..3]);
        let all = StepExamples::all(&examples);
        assert_eq!([0, 1].map(|shard| all.of_shard(2, shard)), [0..1, 1..3]);
        for wrong in [vec![0, 2, 6], vec![4, 0, 5], vec![1, 1, 2]] {
            let some = || StepExamples::some(&examples, wrong.clone(), 6).samples;
            assert!(std::panic::catch_unwind(some).is_err(), "{wrong:?}");
        }
    }
}
