//! The loss of samples and its gradient, micro-batch by micro-batch.
use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, LogProb, LossRows, Samples, Target};

use crate::autograd::Tape;
use crate::data::TokenWindow;
use crate::error::{Error, Result};
use crate::functional::Eager;
use crate::grads::Grads;
use crate::kv::NoCache;
use crate::model::Model;
use crate::rows::Rows;

/// One training sample: what a micro-batch may not split. It may hold several documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrainingExample {
    /// The tokens that are read.
    pub inputs: Vec<u32>,
    /// What follows each of them, where that is to be learnt; as long as `inputs`.
    pub targets: Vec<Option<Target>>,
    /// Where the second document begins, the third, ...: rising places in `inputs`. Positions restart there,
    /// and no row sees beyond its document.
    pub starts: Vec<usize>,
}

/// How logits become the distribution whose log-probabilities are learnt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitsProcessing {
    /// They are divided by it.
    pub temperature: f32,
    /// A row keeps so many of the largest, and its target; none: all.
    pub top_k: Option<usize>,
}

impl Default for LogitsProcessing {
    fn default() -> LogitsProcessing {
        LogitsProcessing { temperature: 1.0, top_k: None }
    }
}

impl TrainingExample {
    /// A window of running text: each token but the last predicts its successor, with `weight`.
    pub fn window(tokens: &[u32], weight: f32) -> TrainingExample {
        let target = |&id: &u32| Some(Target { id, weight, bonus: 0.0 });
        let n = tokens.len().saturating_sub(1);
        TrainingExample {
            inputs: tokens[..n].to_vec(),
            targets: tokens[1.min(tokens.len())..].iter().map(target).collect(),
            starts: Vec::new(),
        }
    }
}

impl From<TokenWindow> for TrainingExample {
    /// The excerpt with targets that normalize_loss_weights 1; [`Trainer::step`](crate::Trainer::step) weighs them anew.
    fn from(excerpt: TokenWindow) -> TrainingExample {
        let TokenWindow { inputs, targets, starts } = excerpt;
        let target = |id: Option<u32>| id.map(|id| Target { id, weight: 1.0, bonus: 0.0 });
        TrainingExample { inputs, targets: targets.into_iter().map(target).collect(), starts }
    }
}

/// A micro-batch as a pass sees it.
pub(crate) struct Batch {
    pub(crate) rows: Rows,
    pub(crate) samples: Samples,
    targets: Vec<Option<Target>>,
}

impl Batch {
    /// The rows of `samples`: each document a sequence of its own.
    pub(crate) fn new(samples: &[TrainingExample]) -> Result<Batch> {
        let mut documents: Vec<&[u32]> = Vec::new();
        for sample in samples {
            let (mut rest, mut from) = (&sample.inputs[..], 0);
            let starts = if faults::on(Fault::DocumentsSeeEachOther) { &[] } else { &sample.starts[..] };
            for &start in starts {
                let length = start.checked_sub(from).filter(|&n| n > 0 && n < rest.len());
                let (document, others) = rest.split_at(length.ok_or_else(|| Error::Documents {
                    starts: sample.starts.clone(),
                    tokens: sample.inputs.len(),
                })?);
                documents.push(document);
                (rest, from) = (others, start);
            }
            documents.push(rest);
        }
        Ok(Batch {
            rows: Rows::whole(&documents),
            samples: Samples::of_lengths(samples.iter().map(|s| s.inputs.len())),
            targets: samples.iter().flat_map(|s| s.targets.iter().copied()).collect(),
        })
    }

    fn loss(&self, how: LogitsProcessing) -> LossRows<'_> {
        let LogitsProcessing { temperature, top_k } = how;
        LossRows { targets: &self.targets, samples: &self.samples, temperature, top_k }
    }

    /// Adds the loss of `hidden` and its gradient by the head; returns the values of the rows and the
    /// gradient of `hidden`.
    pub(crate) fn loss_backward(
        &self,
        model: &Model,
        hidden: &Tensor,
        how: LogitsProcessing,
        (loss, grads): (&mut f32, &mut Grads),
    ) -> Result<(Vec<Option<LogProb>>, Tensor)> {
        let head = model.params.head().packed()?;
        let slot = grads.slot_mut(model.params.head_slot());
        Ok(ops::cross_entropy_backward(hidden, &head, &self.loss(how), loss, slot)?)
    }
}

/// Adds the loss of one micro-batch to `loss` and its gradient to `grads`; returns the values of its
/// rows. Whatever the split of a step's samples into micro-batches, the sums have the same bits.
///
/// # Errors
/// When an id is outside the vocabulary, a document is too long, [`Error::Documents`] for starts that are
/// not rising places inside their sample, or when a row's logits are not finite.
pub fn backward(
    model: &Model,
    samples: &[TrainingExample],
    how: LogitsProcessing,
    (loss, grads): (&mut f32, &mut Grads),
) -> Result<Vec<Option<LogProb>>> {
    let batch = Batch::new(samples)?;
    let mut tape = Tape::new(batch.samples.clone());
    let hidden = model.forward(&mut tape, &mut NoCache::new(&batch.rows)?, &batch.rows)?;
    let (values, dx) = batch.loss_backward(model, &hidden.value, how, (loss, grads))?;
    tape.backward(&hidden, dx, grads)?;
    Ok(values)
}

/// Adds the loss of samples to `loss`, without a gradient; returns the values of their rows.
///
/// # Errors
/// As [`backward`].
pub fn evaluate(model: &Model, samples: &[TrainingExample], loss: &mut f32) -> Result<Vec<Option<LogProb>>> {
    let batch = Batch::new(samples)?;
    let hidden = model.forward(&mut Eager, &mut NoCache::new(&batch.rows)?, &batch.rows)?;
    let rows = batch.loss(LogitsProcessing::default());
    Ok(ops::cross_entropy(&hidden, &*model.params.head().packed()?, &rows, loss)?)
}
