//! The loss of a micro-batch and its gradient.
use xtrain_tensor::ops::{self, KeptSet, LogProb, Target};

use crate::autograd::Tape;
use crate::batch::Batch;
use crate::data::TokenWindow;
use crate::error::Result;
use crate::functional::Eager;
use crate::grads::Grads;
use crate::model::Model;

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
    /// Continuations of `inputs`. The rows of `inputs` are computed once for all of them. An example with branches has
    /// no targets, starts and kept sets of its own. Its gradient is that of the branches alone up to the order of its
    /// sums (docs/numerics.md, section 4); its values have the same bits.
    pub branches: Vec<Branch>,
}

/// A continuation of the inputs of a training example. Branches do not attend to each other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Branch {
    /// The tokens after those of the example.
    pub inputs: Vec<u32>,
    /// The target of the example's last token, then of each token of `inputs`.
    pub targets: Vec<Option<Target>>,
    /// Kept sets, as long as `targets`, or empty; see [`TrainingExample::kept`].
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

    /// The number of rows of the example in a forward pass.
    pub fn rows(&self) -> usize {
        self.inputs.len() + self.branches.iter().map(|branch| branch.inputs.len()).sum::<usize>()
    }

    /// The number of rows of its loss: one per entry of its targets and of those of its branches.
    pub fn loss_rows(&self) -> usize {
        self.targets.len() + self.branches.iter().map(|branch| branch.targets.len()).sum::<usize>()
    }

    /// The targets, in the order of the loss rows.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        let branches = self.branches.iter().flat_map(|branch| &branch.targets);
        self.targets.iter().chain(branches).flatten()
    }

    /// [`TrainingExample::targets`], mutable.
    pub fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        let branches = self.branches.iter_mut().flat_map(|branch| &mut branch.targets);
        self.targets.iter_mut().chain(branches).flatten()
    }
}

impl From<TokenWindow> for TrainingExample {
    /// The window with loss weights of 1. [`Trainer::step`](crate::Trainer::step) normalizes the weights.
    fn from(window: TokenWindow) -> TrainingExample {
        let TokenWindow { inputs, targets, starts } = window;
        let target = |id: Option<u32>| id.map(|id| Target { id, weight: 1.0, bonus: 0.0 });
        let targets = targets.into_iter().map(target).collect();
        TrainingExample { inputs, targets, starts, ..TrainingExample::default() }
    }
}

/// Adds the loss of one micro-batch to `loss` and its gradient to `grads`. Returns the log-probabilities of its rows.
/// The sums are bit-identical for every split of a step's examples into micro-batches.
///
/// # Errors
/// An id outside the vocabulary; a document that is too long; [`Error::Documents`] for starts that are not increasing
/// offsets inside their example; [`Error::Branches`]; [`Error::KeptSets`] for kept sets that are not one per token; a row whose logits are
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
    let hidden = model.forward(&mut tape, &mut batch.keys()?, &batch.rows)?;
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
    let hidden = model.forward(&mut Eager, &mut batch.keys()?, &batch.rows)?;
    let head = model.params.head().packed()?;
    let values =
        ops::cross_entropy_kept(&batch.loss_hidden(&hidden)?, &head, &batch.loss(processing), &mut 0.0)?;
    if values.kept.iter().any(Option::is_some) {
        let mut kept = values.kept.into_iter();
        for example in examples {
            let mut take = |rows: usize| kept.by_ref().take(rows).collect();
            example.kept = take(example.targets.len());
            for branch in &mut example.branches {
                branch.kept = take(branch.targets.len());
            }
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
    let hidden = model.forward(&mut Eager, &mut batch.keys()?, &batch.rows)?;
    Ok(ops::cross_entropy(
        &batch.loss_hidden(&hidden)?,
        &*model.params.head().packed()?,
        &batch.loss(processing),
        loss,
    )?)
}
