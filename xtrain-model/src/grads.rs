//! Gradients: one accumulator for each use of a parameter.
use xtrain_tensor::ops;
use xtrain_tensor::{
    Tensor,
    faults::{self, Fault},
};

use crate::error::Result;
use crate::param::Param;
use crate::params::Params;

/// The gradients of a step, in walk order, f32, shaped as the parameters. Zeroed once a step, then
/// added to by every micro-batch; a tied table has two until the step ends.
#[derive(Debug, Clone)]
pub struct Grads {
    slots: Vec<Tensor>,
    tied: bool,
}

impl Grads {
    /// Zero gradients for all uses of `params`.
    ///
    /// # Errors
    /// When the device has no memory for them.
    pub fn zeros(params: &Params) -> Result<Grads> {
        let tied = params.head.is_none();
        let head = tied.then_some(&params.embed);
        let shapes: Vec<&[usize]> = params.iter().chain(head).map(Param::shape).collect();
        Ok(Grads { slots: Tensor::all_zeros(params.embed.device(), &shapes)?, tied })
    }

    /// The gradient of one use.
    pub fn slot_mut(&mut self, slot: usize) -> &mut Tensor {
        let head = self.tied && slot + 1 == self.slots.len();
        match head && faults::on(Fault::OneAccumulatorForATiedTable) {
            true => &mut self.slots[0],
            false => &mut self.slots[slot],
        }
    }

    /// Ends the step: the uses of a tied table are added, in forward order. Returns the gradients of
    /// the parameters in walk order.
    ///
    /// # Errors
    /// Never for gradients made by [`Grads::zeros`].
    pub fn finish(mut self) -> Result<Vec<Tensor>> {
        if self.tied {
            let head = self.slots.pop().expect("a tied table has a second slot");
            ops::accumulate(&mut self.slots[0], &head)?;
        }
        Ok(self.slots)
    }
}
