//! Activation checkpointing: only the input of each layer is kept, and the layer's forward runs again in the backward
//! pass. One layer's activations are in memory at a time, at the cost of one more forward. The gradients are
//! bit-identical to those of [`objective::backward`](crate::objective::backward): the same functions run on the same
//! inputs.
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::LogProb;

use crate::autograd::Tape;
use crate::batch::{Batch, SetTargets};
use crate::error::{Error, Result};
use crate::example::{LogitsProcessing, TrainingExample};
use crate::functional::{Eager, Functional};
use crate::grads::Grads;
use crate::model::Model;

/// As [`objective::backward_with`](crate::objective::backward_with), with less memory.
pub(crate) fn backward_with<E: From<Error>>(
    model: &Model,
    examples: &[TrainingExample],
    processing: LogitsProcessing,
    set: Option<&mut SetTargets<'_, E>>,
    loss: &mut f32,
    grads: &mut Grads,
) -> Result<Vec<Option<LogProb>>, E> {
    let mut batch = Batch::new(examples)?;
    let mut h = Eager.embedding(&model.params.embed, &batch.rows.id)?;
    let mut inputs = Vec::new();
    for layer in 0..model.config().n_layers {
        inputs.push(h.clone());
        h = model.block(&mut Eager, &mut batch.keys()?, &batch.rows, layer, &h)?;
    }
    let mut tape = Tape::new(batch.samples.clone());
    let last = tape.leaf(h);
    let hidden = model.final_norm(&mut tape, &last)?;
    if let Some(set) = set {
        batch.set_targets(model, &hidden.value, processing, set)?;
    }
    let (values, dx) = batch.loss_backward(model, &hidden.value, processing, loss, grads)?;
    let mut dh = tape.backward_to(&hidden, dx, &last, grads)?;
    if faults::on(Fault::RecomputeFromWrongInput) {
        let first = inputs[0].clone();
        inputs.fill(first);
    }
    for (layer, input) in inputs.into_iter().enumerate().rev() {
        let mut tape = Tape::new(batch.samples.clone());
        let input = tape.leaf(input);
        let output = model.block(&mut tape, &mut batch.keys()?, &batch.rows, layer, &input)?;
        dh = tape.backward_to(&output, dh, &input, grads)?;
    }
    let mut tape = Tape::new(batch.samples.clone());
    let embedded = tape.embedding(&model.params.embed, &batch.rows.id)?;
    tape.backward(&embedded, dh, grads)?;
    Ok(values)
}
