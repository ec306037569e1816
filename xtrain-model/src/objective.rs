//! The loss of samples and its gradient, micro-batch by micro-batch.
use xtrain_tensor::ops::{self, LogProb, LossRows, Target};

use crate::autograd::Tape;
use crate::error::Result;
use crate::functional::Eager;
use crate::grads::Grads;
use crate::kv::NoCache;
use crate::model::Model;
use crate::rows::Rows;

/// One training sample: what a micro-batch may not split.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// The tokens that are read.
    pub inputs: Vec<u32>,
    /// What follows each of them, where that is to be learnt; as long as `inputs`.
    pub targets: Vec<Option<Target>>,
}

impl Sample {
    /// A window of running text: each token but the last predicts its successor, with `weight`.
    pub fn window(tokens: &[u32], weight: f32) -> Sample {
        let target = |&id: &u32| Some(Target { id, weight, bonus: 0.0 });
        let n = tokens.len().saturating_sub(1);
        Sample {
            inputs: tokens[..n].to_vec(),
            targets: tokens[1.min(tokens.len())..].iter().map(target).collect(),
        }
    }
}

/// The rows of samples, and their targets.
fn rows_of(samples: &[Sample]) -> (Rows, Vec<Option<Target>>) {
    let inputs: Vec<&[u32]> = samples.iter().map(|s| &s.inputs[..]).collect();
    (Rows::whole(&inputs), samples.iter().flat_map(|s| s.targets.iter().copied()).collect())
}

/// Adds the loss of one micro-batch to `loss` and its gradient to `grads`; returns the values of its
/// rows. Whatever the split of a step's samples into micro-batches, the sums have the same bits.
///
/// # Errors
/// When an id is outside the vocabulary, a sample is too long, or a row's logits are not finite.
pub fn backward(
    model: &Model,
    samples: &[Sample],
    temperature: f32,
    (loss, grads): (&mut f32, &mut Grads),
) -> Result<Vec<Option<LogProb>>> {
    let (rows, targets) = rows_of(samples);
    let mut tape = Tape::new(rows.samples());
    let hidden = model.forward(&mut tape, &mut NoCache::new(&rows)?, &rows)?;
    let head = model.params.head().packed()?;
    let loss_rows = LossRows { targets: &targets, samples: &rows.samples(), temperature };
    let slot = grads.slot_mut(model.params.head_slot());
    let (values, dx) = ops::cross_entropy_backward(&hidden.value, &head, &loss_rows, (loss, slot))?;
    tape.backward(&hidden, dx, grads)?;
    Ok(values)
}

/// Adds the loss of samples to `loss`, without a gradient; returns the values of their rows.
///
/// # Errors
/// As [`backward`].
pub fn evaluate(model: &Model, samples: &[Sample], loss: &mut f32) -> Result<Vec<Option<LogProb>>> {
    let (rows, targets) = rows_of(samples);
    let hidden = model.forward(&mut Eager, &mut NoCache::new(&rows)?, &rows)?;
    let loss_rows = LossRows { targets: &targets, samples: &rows.samples(), temperature: 1.0 };
    Ok(ops::cross_entropy(&hidden, &*model.params.head().packed()?, &loss_rows, loss)?)
}
