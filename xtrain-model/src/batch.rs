//! A micro-batch as rows of a forward pass and rows of the loss.
mod layout;
mod loss_part;

use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, KeptSet, LogProb, LossValues, Samples, Target};

use crate::error::{Error, Result};
use crate::example::{Branch, LogitsProcessing, TrainingExample};
use crate::grads::Grads;
use crate::kv::NoCache;
use crate::model::Model;
use crate::rows::Rows;
use layout::Layout;
use loss_part::LossPart;

/// Sets the loss weights and entropy bonuses of the targets of a micro-batch from its values. Both have one entry per
/// target of the examples and of their branches.
pub(crate) type SetTargets<'a, E> =
    dyn FnMut(&[Option<LogProb>], &mut [Option<Target>]) -> Result<(), E> + 'a;

/// The rows of a micro-batch.
pub(crate) struct Batch {
    pub(crate) rows: Rows,
    /// The rows of each example.
    pub(crate) samples: Samples,
    loss: LossPart,
    /// The row of each position of each sequence. `None`: every sequence is whole, and every row is one of the loss.
    table: Option<Vec<Vec<u32>>>,
}

impl Batch {
    /// The rows of `examples`. Each document is a separate sequence, and so is each branch with rows of its own.
    pub(crate) fn new(examples: &[TrainingExample]) -> Result<Batch> {
        examples.iter().try_for_each(check)?;
        let (mut layout, mut loss) = (Layout::default(), LossPart::default());
        let mut lengths = Vec::with_capacity(examples.len());
        for example in examples {
            let first = layout.rows.len();
            if example.branches.is_empty() {
                loss.push_rows(example, layout.push_documents(example)?);
            } else {
                loss.push_tree(example, &layout.push_tree(example));
            }
            lengths.push(layout.rows.len() - first);
        }
        loss.add_weights();
        let has_branches = examples.iter().any(|example| !example.branches.is_empty());
        Ok(Batch {
            samples: Samples::of_lengths(lengths),
            rows: layout.rows,
            loss,
            table: has_branches.then_some(layout.table),
        })
    }

    /// Checks that no sequence is longer than `max` positions.
    pub(crate) fn require_positions(&self, max: usize) -> Result<()> {
        match self.rows.pos.iter().max() {
            Some(&last) if last as usize >= max => {
                let want = "at most as many input tokens of an example as the model has positions";
                let got = format!("{} tokens and {max} positions", last + 1);
                Err(xtrain_tensor::Error::Argument { op: "training", want, got }.into())
            }
            _ => Ok(()),
        }
    }

    /// The keys and values of one pass over the rows.
    pub(crate) fn keys<X>(&self) -> Result<NoCache<X>> {
        match &self.table {
            None => NoCache::new(&self.rows),
            Some(table) => Ok(NoCache::of_table(table.clone())),
        }
    }

    /// The final hidden states of the loss rows.
    fn loss_hidden(&self, hidden: &Tensor) -> Result<Tensor> {
        match &self.table {
            None => Ok(hidden.clone()),
            Some(_) => Ok(ops::gather_rows(hidden, &self.loss.rows)?),
        }
    }

    /// Adds the loss of `hidden` to `loss`. Returns the log-probability of each target.
    pub(crate) fn values(
        &self,
        model: &Model,
        hidden: &Tensor,
        processing: LogitsProcessing,
        loss: &mut f32,
    ) -> Result<Vec<Option<LogProb>>> {
        let (head, rows) = (model.params.head().packed()?, self.loss.operands(processing));
        let values = ops::cross_entropy(&self.loss_hidden(hidden)?, &head, &rows, loss)?;
        Ok(self.loss.per_target(&values))
    }

    /// The log-probability of each target, and the set of tokens that the filters keep.
    pub(crate) fn kept_sets(
        &self,
        model: &Model,
        hidden: &Tensor,
        processing: LogitsProcessing,
    ) -> Result<LossValues> {
        let (head, rows) = (model.params.head().packed()?, self.loss.operands(processing));
        let found = ops::cross_entropy_kept(&self.loss_hidden(hidden)?, &head, &rows, &mut 0.0)?;
        let log_probs = self.loss.per_target(&found.log_probs);
        Ok(LossValues { log_probs, kept: self.loss.per_target(&found.kept) })
    }

    /// Calls `set` with the values of `hidden` and the targets.
    pub(crate) fn set_targets<E: From<Error>>(
        &mut self,
        model: &Model,
        hidden: &Tensor,
        processing: LogitsProcessing,
        set: &mut SetTargets<'_, E>,
    ) -> Result<(), E> {
        let values = self.values(model, hidden, processing, &mut 0.0)?;
        set(&values, &mut self.loss.targets)?;
        self.loss.add_weights();
        Ok(())
    }

    /// Adds the loss of `hidden` to `loss` and the gradient of the head to `grads`. Returns the log-probability of each
    /// target and the gradient of `hidden`.
    pub(crate) fn loss_backward(
        &self,
        model: &Model,
        hidden: &Tensor,
        processing: LogitsProcessing,
        loss: &mut f32,
        grads: &mut Grads,
    ) -> Result<(Vec<Option<LogProb>>, Tensor)> {
        let (head, rows) = (model.params.head().packed()?, self.loss.operands(processing));
        let accumulator = grads.accumulator_mut(model.params.head_index());
        let x = self.loss_hidden(hidden)?;
        let (values, dx) = ops::cross_entropy_backward(&x, &head, &rows, loss, accumulator)?;
        let dx = match &self.table {
            None => dx,
            Some(_) => ops::gather_rows_backward(&dx, &self.loss.rows, hidden.shape()[0])?,
        };
        Ok((self.loss.per_target(&values), dx))
    }
}

/// Checks that the branches and the kept sets of an example fit together.
fn check(example: &TrainingExample) -> Result<()> {
    let TrainingExample { inputs, targets, starts, kept, branches } = example;
    let error = |want, got| Err(Error::Branches { branches: branches.len(), want, got });
    let sets = |tokens: usize, kept: &[Option<KeptSet>]| {
        let fits = kept.is_empty() || kept.len() == tokens;
        if fits { Ok(()) } else { Err(Error::KeptSets { sets: kept.len(), tokens }) }
    };
    if branches.is_empty() {
        if targets.len() != inputs.len() {
            let (op, want) = ("cross_entropy", "one target per token");
            let got = format!("{} targets for {} tokens", targets.len(), inputs.len());
            return Err(Error::Tensor(xtrain_tensor::Error::Argument { op, want, got }));
        }
        return sets(targets.len(), kept);
    }
    if inputs.is_empty() {
        return error("at least one input token", "none".into());
    }
    let starts_refused = !starts.is_empty() && !faults::on(Fault::StartsOfBranchesAccepted);
    if targets.len() + kept.len() > 0 || starts_refused {
        let got = format!("{} targets, {} starts, {} kept sets", targets.len(), starts.len(), kept.len());
        return error("targets, starts and kept sets in the branches only", got);
    }
    for Branch { inputs, targets, kept } in branches {
        if targets.len() != inputs.len() + 1 {
            let got = format!("{} targets for {} tokens", targets.len(), inputs.len());
            return error("one target per token of a branch and one for the token before it", got);
        }
        sets(targets.len(), kept)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The errors of examples with a branch and, of their own, a target, a start and a kept set.
    fn with_branches() -> [Option<String>; 3] {
        let branch = Branch { inputs: vec![4], targets: vec![None; 2], kept: Vec::new() };
        let example = || TrainingExample {
            inputs: vec![1, 2, 3],
            branches: vec![branch.clone()],
            ..Default::default()
        };
        check(&example()).unwrap();
        let own = [
            TrainingExample { targets: vec![None], ..example() },
            TrainingExample { starts: vec![1], ..example() },
            TrainingExample { kept: vec![None], ..example() },
        ];
        own.map(|example| check(&example).err().map(|error| error.to_string()))
    }

    #[test]
    fn an_example_with_branches_has_no_targets_starts_and_kept_sets_of_its_own() {
        let found = ["1 targets, 0 starts, 0", "0 targets, 1 starts, 0", "0 targets, 0 starts, 1"];
        for (error, found) in with_branches().into_iter().zip(found) {
            assert!(error.as_ref().is_some_and(|e| e.contains(found)), "{error:?}");
        }
    }

    #[test]
    #[cfg(feature = "faults")]
    fn starts_beside_branches_that_are_accepted_are_found() {
        assert_eq!(faults::with(Fault::StartsOfBranchesAccepted, with_branches)[1], None);
    }
}
