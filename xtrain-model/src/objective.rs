//! The loss of a micro-batch and its gradient.
use xtrain_tensor::ops::{LogProb, LossValues};

use crate::backward::{ActivationCheckpointing, Pass, Totals};
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::example::{LogitsProcessing, TrainingExample};
use crate::functional::Eager;
use crate::grads::Grads;
use crate::model::Model;

/// Adds the loss of one micro-batch to `loss` and its gradient to `grads`. Returns the log-probability of each
/// target: those of each example, then those of its branches.
/// The sums are bit-identical for every split of a step's examples into micro-batches.
///
/// # Errors
/// An id outside the vocabulary; a document that is too long; [`Error::Documents`] for starts that are not increasing
/// offsets inside their example; [`Error::Branches`] for branches that do not fit together; [`Error::KeptSets`] for
/// kept sets that are not one per token; a row whose logits are not finite.
///
/// [`Error::Documents`]: crate::Error::Documents
/// [`Error::Branches`]: crate::Error::Branches
/// [`Error::KeptSets`]: crate::Error::KeptSets
pub fn backward(
    model: &Model,
    examples: &[TrainingExample],
    processing: LogitsProcessing,
    loss: &mut f32,
    grads: &mut Grads,
) -> Result<Vec<Option<LogProb>>> {
    let pass = Pass { model, processing, checkpointing: ActivationCheckpointing::Off };
    pass.run::<Error>(examples, None, Totals { loss, grads }, &mut |_, _| Ok(()))
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

/// As [`values`]. Also sets [`TrainingExample::kept`] to the sets that the filters keep. It stays empty if no filter
/// can remove a token.
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
    let LossValues { log_probs, kept } = batch.kept_sets(model, &hidden, processing)?;
    if kept.iter().any(Option::is_some) {
        let mut kept = kept.into_iter();
        for example in examples {
            let mut take = |targets: usize| kept.by_ref().take(targets).collect();
            example.kept = take(example.targets.len());
            for branch in &mut example.branches {
                branch.kept = take(branch.targets.len());
            }
        }
    }
    Ok(log_probs)
}

fn processed(
    model: &Model,
    examples: &[TrainingExample],
    processing: LogitsProcessing,
    loss: &mut f32,
) -> Result<Vec<Option<LogProb>>> {
    let batch = Batch::new(examples)?;
    let hidden = model.forward(&mut Eager, &mut batch.keys()?, &batch.rows)?;
    batch.values(model, &hidden, processing, loss)
}
