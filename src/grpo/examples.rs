//! Completions as training examples: those of a group share the rows of their prompt and of equal beginnings.
use std::ops::Range;

use super::batch::{Group, Sample};
use super::token_values::TokenValues;
use super::{Error, exchange};
use crate::model::comm::Communicator;
use crate::model::{Branch, LogitsProcessing, Model, TrainingExample, objective, shard_samples};
use crate::tensor::faults::{self, Fault};
use crate::tensor::ops::{KeptSet, LogProb, Target};

/// A completion with its advantage.
#[derive(Debug, Clone)]
pub struct Weighted<'a> {
    /// The group of the completion.
    pub group: &'a Group,
    /// The completion.
    pub sample: &'a Sample,
    /// Its advantage.
    pub advantage: f64,
    /// The log-probabilities of its tokens under the reference model.
    pub reference: Option<Vec<f64>>,
    /// The tokens that the filters kept under the weights that sampled, per token. Empty: the filters are applied to
    /// the current logits.
    pub kept: &'a [Option<KeptSet>],
}

impl Weighted<'_> {
    /// The loss mask: which tokens were sampled. The others have no target.
    pub(super) fn mask(&self) -> Vec<bool> {
        match faults::on(Fault::AppendedTokensTrained) {
            true => vec![true; self.sample.mask.len()],
            false => self.sample.mask.clone(),
        }
    }
}

/// How completions become training examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Examples {
    /// Maximum number of completions of a group in one example, which computes their prompt and equal beginnings once.
    /// 1: an example is one completion with its prompt.
    pub shared: usize,
    /// Completions per forward pass. No result depends on it.
    pub micro_batch: usize,
}

impl Examples {
    /// The completions of each example.
    pub(super) fn parts<'a>(
        &self,
        completions: &'a [Weighted<'_>],
    ) -> impl Iterator<Item = Range<usize>> + 'a {
        let (shared, mut start) = (self.shared.max(1), 0);
        let groups = completions.chunk_by(|a, b| std::ptr::eq(a.group, b.group));
        groups.flat_map(move |group| group.chunks(shared)).map(move |part| {
            start += part.len();
            start - part.len()..start
        })
    }

    /// Examples per forward pass.
    pub(super) fn per_pass(&self) -> usize {
        (self.micro_batch / self.shared.max(1)).max(1)
    }

    /// Rows of the largest forward pass of one of `processes` over `[groups, completions per group]`, with prompts and
    /// completions of these lengths, if no two completions of a group begin with the same token. The last example of a
    /// group has fewer completions if `shared` does not divide the group.
    pub(crate) fn rows_per_pass(
        &self,
        [groups, group]: [usize; 2],
        processes: usize,
        [prompt, new]: [usize; 2],
    ) -> usize {
        let shared = self.shared.max(1);
        let own = (groups * group.div_ceil(shared)).div_ceil(processes);
        let examples = own.min(self.per_pass());
        let completions = (groups * group).min(examples * shared);
        examples * prompt + completions * new.saturating_sub(1)
    }

    /// The completions of each forward pass over the examples `parts`, and the examples, without loss weights.
    pub(super) fn passes<'a>(
        &'a self,
        completions: &'a [Weighted<'a>],
        parts: &'a [Range<usize>],
    ) -> impl Iterator<Item = (Vec<usize>, Vec<TrainingExample>)> + 'a {
        let example = move |part: &Range<usize>| self.example(&completions[part.clone()], |_, _| (0.0, 0.0));
        let pass = move |parts: &[Range<usize>]| {
            (parts.iter().cloned().flatten().collect(), parts.iter().map(example).collect())
        };
        parts.chunks(self.per_pass()).map(pass)
    }

    /// The values of the completions of `parts` under `model`, each with the index of its completion. Each process
    /// computes a part of them.
    pub(super) fn values(
        &self,
        model: &Model,
        completions: &[Weighted<'_>],
        parts: &[Range<usize>],
        processing: LogitsProcessing,
        comm: &dyn Communicator,
    ) -> Result<Vec<(usize, TokenValues)>, Error> {
        let own = &parts[shard_samples(parts.len(), comm.size(), comm.rank())];
        let mut all = Vec::new();
        for (pass, examples) in self.passes(completions, own) {
            let mut rows = objective::values(model, &examples, processing)?.into_iter();
            all.extend(pass.into_iter().map(|i| (i, self.values_of(&completions[i], &mut rows))));
        }
        exchange::values(comm, all)
    }

    /// Rows of the example of `part` in a forward pass.
    pub(super) fn rows(&self, part: &[Weighted<'_>]) -> usize {
        let inputs = |completion: &Weighted<'_>| {
            let tokens = &completion.sample.tokens;
            Branch { inputs: tokens[..tokens.len() - 1].to_vec(), ..Branch::default() }
        };
        let branches = part.iter().map(inputs).collect();
        TrainingExample { inputs: part[0].group.prompt.ids.clone(), branches, ..TrainingExample::default() }
            .rows()
    }

    /// The example of `part`. `target(i, t)` gives the loss weight and the entropy bonus of token `t` of completion
    /// `i`.
    pub(super) fn example(
        &self,
        part: &[Weighted<'_>],
        target: impl Fn(usize, usize) -> (f32, f32),
    ) -> TrainingExample {
        let prompt = &part[0].group.prompt.ids;
        let branch = |(i, completion): (usize, &Weighted<'_>)| {
            let (tokens, mask) = (&completion.sample.tokens, completion.mask());
            let target = |(t, &id): (usize, &u32)| {
                let (weight, bonus) = target(i, t);
                mask[t].then_some(Target { id, weight, bonus })
            };
            Branch {
                inputs: tokens[..tokens.len() - 1].to_vec(),
                targets: tokens.iter().enumerate().map(target).collect(),
                kept: completion.kept.to_vec(),
            }
        };
        let branches = part.iter().enumerate().map(branch);
        if self.shared > 1 {
            let branches = branches.collect();
            return TrainingExample { inputs: prompt.clone(), branches, ..TrainingExample::default() };
        }
        let mut example = TrainingExample { inputs: prompt.clone(), ..TrainingExample::default() };
        for Branch { inputs, targets, kept } in branches {
            let unread = prompt.len() - 1;
            example.inputs.extend(inputs);
            example.targets = vec![None; unread].into_iter().chain(targets).collect();
            if !kept.is_empty() {
                example.kept = vec![None; unread].into_iter().chain(kept).collect();
            }
        }
        example
    }

    /// The values of the next completion, from the values of all targets.
    pub(super) fn values_of(
        &self,
        completion: &Weighted<'_>,
        rows: &mut impl Iterator<Item = Option<LogProb>>,
    ) -> TokenValues {
        let found: Vec<LogProb> = rows.take(self.targets(completion)).flatten().collect();
        let per_token = |value: fn(&LogProb) -> f32| {
            let values: Vec<f64> = found.iter().map(|found| f64::from(value(found))).collect();
            completion.sample.per_token(&values)
        };
        TokenValues { logp: per_token(|found| found.log_prob), entropy: per_token(|found| found.entropy) }
    }

    /// Sets the weights of the next completion in the targets. `factors` gives the loss weight and
    /// the entropy bonus of a token.
    pub(super) fn set_weights<'t>(
        &self,
        completion: &Weighted<'_>,
        targets: &mut impl Iterator<Item = &'t mut Option<Target>>,
        factors: impl Fn(usize) -> (f32, f32),
    ) {
        let unread = self.targets(completion) - completion.sample.tokens.len();
        for (t, target) in targets.take(self.targets(completion)).skip(unread).enumerate() {
            if let Some(target) = target {
                (target.weight, target.bonus) = factors(t);
            }
        }
    }

    /// Number of targets of a completion, with those of its prompt.
    fn targets(&self, completion: &Weighted<'_>) -> usize {
        let unread = if self.shared > 1 { 0 } else { completion.group.prompt.ids.len() - 1 };
        unread + completion.sample.tokens.len()
    }

    /// The kept sets of each completion of `examples`, per token.
    pub(super) fn kept_sets_of(&self, examples: Vec<TrainingExample>) -> Vec<Vec<Option<KeptSet>>> {
        let of = |mut example: TrainingExample| -> Vec<Vec<Option<KeptSet>>> {
            if self.shared > 1 {
                return example.branches.into_iter().map(|branch| branch.kept).collect();
            }
            let unread = example.targets.iter().take_while(|target| target.is_none()).count();
            vec![example.kept.split_off(unread.min(example.kept.len()))]
        };
        examples.into_iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_pass_has_a_prompt_for_each_part_of_a_group() {
        let rows =
            |shared, micro_batch, sizes| Examples { shared, micro_batch }.rows_per_pass(sizes, 1, [10, 3]);
        // 2 groups of 4: parts of 3 and 1 completions, 2 rows per completion and 10 per part
        assert_eq!(rows(3, 100, [2, 4]), 4 * 10 + 8 * 2);
        // 2 parts per pass
        assert_eq!(rows(3, 6, [2, 4]), 2 * 10 + 6 * 2);
        assert_eq!(rows(4, 100, [2, 4]), 2 * 10 + 8 * 2);
        assert_eq!(rows(4, 1, [2, 4]), 10 + 4 * 2);
        assert_eq!(rows(1, 5, [2, 4]), 5 * 12);
        // 8 examples of 3 processes: one has 3
        let of_three = Examples { shared: 1, micro_batch: 100 }.rows_per_pass([2, 4], 3, [10, 3]);
        assert_eq!(of_three, 3 * 12);
    }
}
