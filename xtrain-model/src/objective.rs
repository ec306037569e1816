//! The loss of a micro-batch and its gradient.
use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, KeptSet, LogProb, LossRows, Samples, Target};

use crate::autograd::Tape;
use crate::data::TokenWindow;
use crate::error::{Error, Result};
use crate::functional::Eager;
use crate::grads::Grads;
use crate::kv::NoCache;
use crate::model::Model;
use crate::rows::Rows;

/// One training example: the smallest unit of a micro-batch. It may contain several documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrainingExample {
    /// The input tokens.
    pub inputs: Vec<u32>,
    /// The target of each input token, as long as `inputs`. `None`: the token does not contribute to the loss.
    pub targets: Vec<Option<Target>>,
    /// The start of the second document, the third, ...: increasing offsets in `inputs`. Positions restart there, and
    /// attention is limited to the document.
    pub starts: Vec<usize>,
    /// Kept sets of an earlier pass ([`store_kept_sets`]), as long as `inputs`, or empty. They replace the filters of
    /// [`LogitsProcessing`] in their rows; the temperature still applies. `None`: the filters apply to the row.
    pub kept: Vec<Option<KeptSet>>,
}

/// The processing of logits before the log-probabilities of the loss: the sampler's, without the repetition penalty.
/// Temperature, top-k, top-p and min-p act in this order.
///
/// With the options of the sampler and the weights that sampled, a token's log-probability has the bits of the
/// sampler's processed log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitsProcessing {
    /// Divides the logits.
    pub temperature: f32,
    /// Number of largest logits that a row keeps, in addition to its target. At least 1. `None`: no limit.
    pub top_k: Option<usize>,
    /// Removes the smallest probabilities that add up to at most `1 - top_p`, except the target's. In (0, 1]; 1: off.
    pub top_p: f32,
    /// Removes tokens with less than this fraction of the largest probability, except the target. In [0, 1]; 0: off.
    pub min_p: f32,
}

impl Default for LogitsProcessing {
    fn default() -> LogitsProcessing {
        LogitsProcessing { temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0 }
    }
}

impl TrainingExample {
    /// A window of running text: each token except the last predicts its successor, with loss weight `weight`.
    pub fn window(tokens: &[u32], weight: f32) -> TrainingExample {
        let target = |&id: &u32| Some(Target { id, weight, bonus: 0.0 });
        let n = tokens.len().saturating_sub(1);
        TrainingExample {
            inputs: tokens[..n].to_vec(),
            targets: tokens[1.min(tokens.len())..].iter().map(target).collect(),
            ..TrainingExample::default()
        }
    }
}

impl From<TokenWindow> for TrainingExample {
    /// The window with loss weights of 1. [`Trainer::step`](crate::Trainer::step) normalizes the weights.
    fn from(window: TokenWindow) -> TrainingExample {
        let TokenWindow { inputs, targets, starts } = window;
        let target = |id: Option<u32>| id.map(|id| Target { id, weight: 1.0, bonus: 0.0 });
        let targets = targets.into_iter().map(target).collect();
        TrainingExample { inputs, targets, starts, kept: Vec::new() }
    }
}

/// A micro-batch as rows of a forward pass.
pub(crate) struct Batch {
    pub(crate) rows: Rows,
    pub(crate) samples: Samples,
    targets: Vec<Option<Target>>,
    /// The given kept sets of the rows. Empty: no example has any.
    kept: Vec<Option<KeptSet>>,
}

impl Batch {
    /// The rows of `examples`. Each document is a separate sequence.
    pub(crate) fn new(examples: &[TrainingExample]) -> Result<Batch> {
        let mut documents: Vec<&[u32]> = Vec::new();
        for example in examples {
            let (mut rest, mut from) = (&example.inputs[..], 0);
            let starts = if faults::on(Fault::CrossDocumentAttention) { &[] } else { &example.starts[..] };
            for &start in starts {
                let length = start.checked_sub(from).filter(|&n| n > 0 && n < rest.len());
                let (document, others) = rest.split_at(length.ok_or_else(|| Error::Documents {
                    starts: example.starts.clone(),
                    tokens: example.inputs.len(),
                })?);
                documents.push(document);
                (rest, from) = (others, start);
            }
            documents.push(rest);
        }
        Ok(Batch {
            kept: kept_of(examples)?,
            rows: Rows::whole(&documents),
            samples: Samples::of_lengths(examples.iter().map(|e| e.inputs.len())),
            targets: examples.iter().flat_map(|e| e.targets.iter().copied()).collect(),
        })
    }

    fn loss(&self, processing: LogitsProcessing) -> LossRows<'_> {
        let LogitsProcessing { temperature, top_k, top_p, min_p } = processing;
        let kept = &self.kept;
        LossRows { temperature, top_k, top_p, min_p, kept, ..LossRows::new(&self.targets, &self.samples) }
    }

    /// Adds the loss of `hidden` to `loss` and the gradient of the head to `grads`. Returns the log-probabilities of
    /// the rows and the gradient of `hidden`.
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
        Ok(ops::cross_entropy_backward(hidden, &head, &self.loss(processing), loss, accumulator)?)
    }
}

/// The kept sets of all rows. Empty: no example has any.
fn kept_of(examples: &[TrainingExample]) -> Result<Vec<Option<KeptSet>>> {
    if let Some(example) = examples.iter().find(|e| !e.kept.is_empty() && e.kept.len() != e.inputs.len()) {
        return Err(Error::KeptSets { sets: example.kept.len(), tokens: example.inputs.len() });
    }
    if examples.iter().all(|example| example.kept.is_empty()) {
        return Ok(Vec::new());
    }
    let mut kept = Vec::new();
    for example in examples {
        let rows = kept.len() + example.inputs.len();
        kept.extend_from_slice(&example.kept);
        kept.resize(rows, None);
    }
    Ok(kept)
}

/// Adds the loss of one micro-batch to `loss` and its gradient to `grads`. Returns the log-probabilities of its rows.
/// The sums are bit-identical for every split of a step's examples into micro-batches.
///
/// # Errors
/// An id outside the vocabulary; a document that is too long; [`Error::Documents`] for starts that are not increasing
/// offsets inside their example; [`Error::KeptSets`] for kept sets that are not one per token; a row whose logits are
/// not finite.
pub fn backward(
    model: &Model,
    examples: &[TrainingExample],
    processing: LogitsProcessing,
    loss: &mut f32,
    grads: &mut Grads,
) -> Result<Vec<Option<LogProb>>> {
    let batch = Batch::new(examples)?;
    let mut tape = Tape::new(batch.samples.clone());
    let hidden = model.forward(&mut tape, &mut NoCache::new(&batch.rows)?, &batch.rows)?;
    let (values, dx) = batch.loss_backward(model, &hidden.value, processing, loss, grads)?;
    tape.backward(&hidden, dx, grads)?;
    Ok(values)
}

/// Adds the loss of `examples` to `loss`, without a gradient. Returns the log-probabilities of the rows.
///
/// # Errors
/// As [`backward`].
pub fn evaluate(model: &Model, examples: &[TrainingExample], loss: &mut f32) -> Result<Vec<Option<LogProb>>> {
    processed(model, examples, LogitsProcessing::default(), loss)
}

/// Returns the log-probability of each target after `processing`. [`LogProb::kept`] tells whether the filters keep the
/// target.
///
/// # Errors
/// As [`backward`].
pub fn values(
    model: &Model,
    examples: &[TrainingExample],
    processing: LogitsProcessing,
) -> Result<Vec<Option<LogProb>>> {
    processed(model, examples, processing, &mut 0.0)
}

/// As [`values`]. Also sets [`TrainingExample::kept`] to the sets that the filters keep. It stays empty if no filter can
/// remove a token.
///
/// Later passes over the examples then keep the tokens that the weights of this pass keep, also after the weights have
/// changed. The set of a row takes at most `4 ceil(V / 32)` bytes; with top-k it takes at most `4 k`. Sets that the
/// examples already have stay.
///
/// # Errors
/// As [`backward`]. The examples are unchanged.
pub fn store_kept_sets(
    model: &Model,
    examples: &mut [TrainingExample],
    processing: LogitsProcessing,
) -> Result<Vec<Option<LogProb>>> {
    let batch = Batch::new(examples)?;
    let hidden = model.forward(&mut Eager, &mut NoCache::new(&batch.rows)?, &batch.rows)?;
    let head = model.params.head().packed()?;
    let values = ops::cross_entropy_kept(&hidden, &head, &batch.loss(processing), &mut 0.0)?;
    if values.kept.iter().any(Option::is_some) {
        let mut kept = values.kept.into_iter();
        for example in examples {
            example.kept = kept.by_ref().take(example.inputs.len()).collect();
        }
    }
    Ok(values.log_probs)
}

fn processed(
    model: &Model,
    examples: &[TrainingExample],
    processing: LogitsProcessing,
    loss: &mut f32,
) -> Result<Vec<Option<LogProb>>> {
    let batch = Batch::new(examples)?;
    let hidden = model.forward(&mut Eager, &mut NoCache::new(&batch.rows)?, &batch.rows)?;
    Ok(ops::cross_entropy(&hidden, &*model.params.head().packed()?, &batch.loss(processing), loss)?)
}
