//! The forward and backward pass of a micro-batch, one tape for each layer. With activation checkpointing only the input
//! of each layer is kept, and its forward runs again in the backward pass: the same functions on the same inputs, so the
//! gradients have the same bits.
use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::LogProb;

use crate::autograd::{Tape, Var};
use crate::batch::{Batch, SetTargets};
use crate::error::{Error, Result};
use crate::example::{LogitsProcessing, TrainingExample};
use crate::functional::{Eager, Functional};
use crate::grads::Grads;
use crate::model::Model;

/// Which activations a forward pass keeps for the backward pass. The results are bit-identical.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ActivationCheckpointing {
    /// Keep every activation.
    #[default]
    Off,
    /// Keep only the input of each layer and recompute the layer's forward in the backward pass.
    PerLayer,
}

/// Called when the backward pass has added its last value to the gradients of a part of [`Params::parts`]: from the
/// last part to the second. Those of the first part are complete when the pass ends.
///
/// [`Params::parts`]: crate::params::Params::parts
pub(crate) type OnPart<'a> = dyn FnMut(usize, &mut Totals<'_>) -> Result<()> + 'a;

/// What a pass adds to.
pub(crate) struct Totals<'a> {
    pub(crate) loss: &'a mut f32,
    pub(crate) grads: &'a mut Grads,
}

/// The forward and backward pass of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass<'m> {
    pub(crate) model: &'m Model,
    pub(crate) processing: LogitsProcessing,
    pub(crate) checkpointing: ActivationCheckpointing,
}

/// The forward pass of a layer.
struct Recorded<'m> {
    tape: Tape<'m>,
    input: Var,
    output: Var,
}

/// What is kept of a layer for its backward pass.
enum Kept<'m> {
    Activations(Recorded<'m>),
    Input(Tensor),
}

impl<'m> Pass<'m> {
    /// Adds the loss of one micro-batch and its gradient to `totals`. Between the forward and the backward pass, `set`
    /// gives the targets their loss weights and entropy bonuses. Returns the log-probability of each target.
    ///
    /// # Errors
    /// As [`objective::backward`](crate::objective::backward); the errors of `set` and `on_part`.
    pub(crate) fn run<E: From<Error>>(
        &self,
        examples: &[TrainingExample],
        set: Option<&mut SetTargets<'_, E>>,
        mut totals: Totals<'_>,
        on_part: &mut OnPart<'_>,
    ) -> Result<Vec<Option<LogProb>>, E> {
        let model = self.model;
        let mut batch = Batch::new(examples)?;
        batch.require_positions(model.config().max_positions)?;
        let mut table = Tape::new(batch.samples.clone());
        let embedded = table.embedding(&model.params.embed, &batch.rows.id)?;
        let (mut layers, mut h) = (Vec::new(), embedded.value.clone());
        for layer in 0..model.config().n_layers {
            let (kept, output) = self.forward(&batch, layer, h)?;
            layers.push(kept);
            h = output;
            h.device().submit().map_err(Error::from)?;
        }
        let mut tape = Tape::new(batch.samples.clone());
        let last = tape.leaf(h);
        let hidden = model.final_norm(&mut tape, &last)?;
        if let Some(set) = set {
            batch.set_targets(model, &hidden.value, self.processing, set)?;
        }
        let (values, dx) =
            batch.loss_backward(model, &hidden.value, self.processing, totals.loss, totals.grads)?;
        let mut dh = tape.backward_to(&hidden, dx, &last, totals.grads)?;
        on_part(layers.len() + 1, &mut totals)?;
        if let Some(Kept::Input(first)) = layers.first()
            && faults::on(Fault::RecomputeFromWrongInput)
        {
            let first = first.clone();
            layers.fill_with(|| Kept::Input(first.clone()));
        }
        for (layer, kept) in layers.into_iter().enumerate().rev() {
            dh = self.backward(&batch, layer, kept, dh, totals.grads)?;
            on_part(layer + 1, &mut totals)?;
            dh.device().submit().map_err(Error::from)?;
        }
        table.backward(&embedded, dh, totals.grads)?;
        Ok(values)
    }

    /// The output of a layer, and what its backward pass needs.
    fn forward(&self, batch: &Batch, layer: usize, h: Tensor) -> Result<(Kept<'m>, Tensor)> {
        match self.checkpointing {
            ActivationCheckpointing::Off => {
                let recorded = self.record(batch, layer, h)?;
                let output = recorded.output.value.clone();
                Ok((Kept::Activations(recorded), output))
            }
            ActivationCheckpointing::PerLayer => {
                let output = self.model.block(&mut Eager, &mut batch.keys()?, &batch.rows, layer, &h)?;
                Ok((Kept::Input(h), output))
            }
        }
    }

    fn record(&self, batch: &Batch, layer: usize, h: Tensor) -> Result<Recorded<'m>> {
        let mut tape = Tape::new(batch.samples.clone());
        let input = tape.leaf(h);
        let output = self.model.block(&mut tape, &mut batch.keys()?, &batch.rows, layer, &input)?;
        Ok(Recorded { tape, input, output })
    }

    /// The gradient of the input of a layer, from that of its output.
    fn backward(
        &self,
        batch: &Batch,
        layer: usize,
        kept: Kept<'m>,
        dh: Tensor,
        grads: &mut Grads,
    ) -> Result<Tensor> {
        let Recorded { tape, input, output } = match kept {
            Kept::Activations(recorded) => recorded,
            Kept::Input(h) => self.record(batch, layer, h)?,
        };
        tape.backward_to(&output, dh, &input, grads)
    }
}
