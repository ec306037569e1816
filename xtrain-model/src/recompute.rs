//! Activation checkpointing: keeps only the input of each layer and recomputes the layer's forward in the backward
//! pass. The activations of one layer are in memory at a time, at the cost of one more forward pass. The gradients
//! are bit-identical to [`objective::backward`](crate::objective::backward): both run the same code on the same
//! inputs.
use xtrain_tensor::ops::{LogProb, Samples};
use xtrain_tensor::{
    Tensor,
    faults::{self, Fault},
};

use crate::autograd::Tape;
use crate::error::Result;
use crate::functional::Eager;
use crate::grads::Grads;
use crate::kv::NoCache;
use crate::model::Model;
use crate::objective::{Batch, LogitsProcessing, TrainingExample};
use crate::rows::Rows;

/// As [`objective::backward`](crate::objective::backward), with less memory.
///
/// # Errors
/// As [`objective::backward`](crate::objective::backward).
pub(crate) fn backward(
    model: &Model,
    samples: &[TrainingExample],
    how: LogitsProcessing,
    (loss, grads): (&mut f32, &mut Grads),
) -> Result<Vec<Option<LogProb>>> {
    let batch = Batch::new(samples)?;
    let rows = &batch.rows;
    let (mut h, mut inputs) = (model.embed(&mut Eager, rows)?, Vec::new());
    for layer in 0..model.config().n_layers {
        inputs.push(h.h.clone());
        h = model.block(&mut Eager, &mut NoCache::new(rows)?, rows, (layer, &h))?;
    }
    let mut tape = Tape::new(batch.samples.clone());
    let last = tape.leaf(h.h);
    let hidden = model.final_norm(&mut tape, &last)?;
    let (values, dx) = batch.loss_backward(model, &hidden.value, how, loss, grads)?;
    let mut dh = tape.backward_to((&hidden, dx), &last, grads)?;
    if faults::on(Fault::RecomputeFromAnotherLayer) {
        let first = inputs[0].clone();
        inputs.fill(first);
    }
    for (layer, input) in inputs.into_iter().enumerate().rev() {
        dh = layer_backward((model, layer), (rows, &batch.samples), (input, dh), grads)?;
    }
    let mut tape = Tape::new(batch.samples.clone());
    let embedded = model.embed(&mut tape, rows)?;
    tape.backward(&embedded, dh, grads)?;
    Ok(values)
}

/// The gradient of a layer's input from the gradient of its output.
fn layer_backward(
    (model, layer): (&Model, usize),
    (rows, samples): (&Rows, &Samples),
    (input, dy): (Tensor, Tensor),
    grads: &mut Grads,
) -> Result<Tensor> {
    let mut tape = Tape::new(samples.clone());
    let input = tape.leaf(input);
    let output = model.block(&mut tape, &mut NoCache::new(rows)?, rows, (layer, &input))?;
    tape.backward_to((&output, dy), &input, grads)
}
