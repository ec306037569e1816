//! A micro-batch as rows of a forward pass and rows of the loss.
use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, KeptSet, LogProb, LossRows, Samples, Target};

use crate::error::{Error, Result};
use crate::example::{Branch, LogitsProcessing, TrainingExample};
use crate::grads::Grads;
use crate::kv::NoCache;
use crate::model::Model;
use crate::rows::Rows;

/// Sets the loss weights and entropy bonuses of the targets of a micro-batch from its values. Both have one entry per
/// loss row.
pub(crate) type SetTargets<'a, E> =
    dyn FnMut(&[Option<LogProb>], &mut [Option<Target>]) -> Result<(), E> + 'a;

/// The rows of a micro-batch.
pub(crate) struct Batch {
    pub(crate) rows: Rows,
    /// The rows of each example.
    pub(crate) samples: Samples,
    loss: LossPart,
    /// `None`: every sequence is whole.
    shared: Option<SharedRows>,
}

/// The rows of the loss.
struct LossPart {
    samples: Samples,
    targets: Vec<Option<Target>>,
    /// The given kept sets. Empty: no example has any.
    kept: Vec<Option<KeptSet>>,
}

/// How sequences share rows.
struct SharedRows {
    /// The row of each position of each sequence.
    table: Vec<Vec<u32>>,
    /// The row of each loss row.
    loss: Vec<u32>,
}

impl Batch {
    /// The rows of `examples`. Each document and each branch is a separate sequence.
    pub(crate) fn new(examples: &[TrainingExample]) -> Result<Batch> {
        examples.iter().try_for_each(check_branches)?;
        let mut rows = Rows::default();
        let mut shared = SharedRows { table: Vec::new(), loss: Vec::new() };
        for example in examples {
            if example.branches.is_empty() {
                shared.push_documents(&mut rows, example)?;
            } else {
                shared.push_tree(&mut rows, example);
            }
        }
        let targets = |e: &TrainingExample| -> Vec<Option<Target>> {
            e.targets.iter().chain(e.branches.iter().flat_map(|branch| &branch.targets)).copied().collect()
        };
        Ok(Batch {
            rows,
            samples: Samples::of_lengths(examples.iter().map(TrainingExample::rows)),
            loss: LossPart {
                samples: Samples::of_lengths(examples.iter().map(TrainingExample::loss_rows)),
                targets: examples.iter().flat_map(targets).collect(),
                kept: kept_of(examples)?,
            },
            shared: examples.iter().any(|e| !e.branches.is_empty()).then_some(shared),
        })
    }

    /// The keys and values of one pass over the rows.
    pub(crate) fn keys<X>(&self) -> Result<NoCache<X>> {
        match &self.shared {
            None => NoCache::new(&self.rows),
            Some(shared) => Ok(NoCache::of_table(shared.table.clone())),
        }
    }

    /// The final hidden states of the loss rows.
    pub(crate) fn loss_hidden(&self, hidden: &Tensor) -> Result<Tensor> {
        match &self.shared {
            None => Ok(hidden.clone()),
            Some(shared) => Ok(ops::gather_rows(hidden, &shared.loss)?),
        }
    }

    /// The operands of the loss.
    pub(crate) fn loss(&self, processing: LogitsProcessing) -> LossRows<'_> {
        let LogitsProcessing { temperature, top_k, top_p, min_p } = processing;
        let LossPart { samples, targets, kept } = &self.loss;
        LossRows { temperature, top_k, top_p, min_p, kept, ..LossRows::new(targets, samples) }
    }

    /// Adds the loss of `hidden` to `loss`. Returns the log-probabilities of the loss rows.
    pub(crate) fn values(
        &self,
        model: &Model,
        hidden: &Tensor,
        processing: LogitsProcessing,
        loss: &mut f32,
    ) -> Result<Vec<Option<LogProb>>> {
        let head = model.params.head().packed()?;
        Ok(ops::cross_entropy(&self.loss_hidden(hidden)?, &head, &self.loss(processing), loss)?)
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
        set(&values, &mut self.loss.targets)
    }

    /// Adds the loss of `hidden` to `loss` and the gradient of the head to `grads`. Returns the log-probabilities of
    /// the loss rows and the gradient of `hidden`.
    pub(crate) fn loss_backward(
        &self,
        model: &Model,
        hidden: &Tensor,
        processing: LogitsProcessing,
        loss: &mut f32,
        grads: &mut Grads,
    ) -> Result<(Vec<Option<LogProb>>, Tensor)> {
        let head = model.params.head().packed()?;
        let accumulator = grads.accumulator_mut(model.params.head_index());
        let x = self.loss_hidden(hidden)?;
        let (values, dx) = ops::cross_entropy_backward(&x, &head, &self.loss(processing), loss, accumulator)?;
        match &self.shared {
            None => Ok((values, dx)),
            Some(shared) => {
                let dx = ops::gather_rows_backward(&dx, &shared.loss, hidden.shape()[0])?;
                Ok((values, dx))
            }
        }
    }
}

impl SharedRows {
    /// Adds the rows of an example without branches.
    fn push_documents(&mut self, rows: &mut Rows, example: &TrainingExample) -> Result<()> {
        let first = rows.len() as u32;
        self.loss.extend(first..first + example.inputs.len() as u32);
        let (mut rest, mut from) = (&example.inputs[..], 0);
        let starts = if faults::on(Fault::CrossDocumentAttention) { &[] } else { &example.starts[..] };
        for &start in starts {
            let length = start.checked_sub(from).filter(|&n| n > 0 && n < rest.len());
            let (document, others) = rest.split_at(length.ok_or_else(|| Error::Documents {
                starts: example.starts.clone(),
                tokens: example.inputs.len(),
            })?);
            self.push_sequence(rows, &[], document);
            (rest, from) = (others, start);
        }
        self.push_sequence(rows, &[], rest);
        Ok(())
    }

    /// Adds the rows of a prompt, then those of its branches.
    fn push_tree(&mut self, rows: &mut Rows, example: &TrainingExample) {
        let prompt: Vec<u32> = (rows.len() as u32..).take(example.inputs.len()).collect();
        self.push_sequence(rows, &[], &example.inputs);
        for branch in &example.branches {
            let own = rows.len() as u32;
            self.loss.extend(prompt.last().copied().into_iter().chain((own..).take(branch.inputs.len())));
            self.push_sequence(rows, &prompt, &branch.inputs);
        }
    }

    /// Adds the rows of a sequence that continues the rows `prefix`.
    fn push_sequence(&mut self, rows: &mut Rows, prefix: &[u32], ids: &[u32]) {
        let (seq, mut table) = (self.table.len() as u32, prefix.to_vec());
        let first = if faults::on(Fault::BranchAtFirstPosition) { 0 } else { prefix.len() as u32 };
        for (pos, &id) in (first..).zip(ids) {
            table.push(rows.len() as u32);
            rows.push(seq, pos, id);
        }
        self.table.push(table);
    }
}

fn check_branches(example: &TrainingExample) -> Result<()> {
    let TrainingExample { inputs, targets, starts, kept, branches } = example;
    let error = |want, got| Err(Error::Branches { branches: branches.len(), want, got });
    if branches.is_empty() {
        return Ok(());
    }
    if inputs.is_empty() {
        return error("at least one input token", "none".into());
    }
    if targets.len() + starts.len() + kept.len() > 0 {
        let got = format!("{} targets, {} starts, {} kept sets", targets.len(), starts.len(), kept.len());
        return error("targets, starts and kept sets in the branches only", got);
    }
    match branches.iter().find(|branch| branch.targets.len() != branch.inputs.len() + 1) {
        None => Ok(()),
        Some(Branch { inputs, targets, .. }) => {
            let got = format!("{} targets for {} tokens", targets.len(), inputs.len());
            error("one target per token of a branch and one for the token before it", got)
        }
    }
}

/// The kept sets of all loss rows. Empty: no example has any.
fn kept_of(examples: &[TrainingExample]) -> Result<Vec<Option<KeptSet>>> {
    let parts = |e: &TrainingExample| -> Vec<(usize, Vec<Option<KeptSet>>)> {
        let branches = e.branches.iter().map(|branch| (branch.targets.len(), branch.kept.clone()));
        [(e.targets.len(), e.kept.clone())].into_iter().chain(branches).collect()
    };
    let parts: Vec<_> = examples.iter().flat_map(parts).collect();
    if let Some((tokens, kept)) = parts.iter().find(|(n, kept)| !kept.is_empty() && kept.len() != *n) {
        return Err(Error::KeptSets { sets: kept.len(), tokens: *tokens });
    }
    if parts.iter().all(|(_, kept)| kept.is_empty()) {
        return Ok(Vec::new());
    }
    let padded = parts.into_iter().flat_map(|(n, mut kept)| {
        kept.resize(n, None);
        kept
    });
    Ok(padded.collect())
}
