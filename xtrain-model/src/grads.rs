//! Gradients: one accumulator for each use of a parameter.
use std::ops::Range;

use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::{Device, Tensor, ops};

use crate::error::Result;
use crate::param::Param;
use crate::params::Params;

/// The gradients of a step, in walk order: f32, with the shapes of the parameters. Zeroed once per step; every
/// micro-batch adds to them. A tied table has two accumulators until the step ends.
#[derive(Debug, Clone)]
pub struct Grads {
    accumulators: Vec<Tensor>,
    tied: bool,
}

impl Grads {
    /// Zero gradients for all uses of `params`.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn zeros(params: &Params) -> Result<Grads> {
        let tied = params.head.is_none();
        let head = tied.then_some(&params.embed);
        let shapes: Vec<&[usize]> = params.iter().chain(head).map(Param::shape).collect();
        Ok(Grads { accumulators: Tensor::all_zeros(params.embed.device(), &shapes)?, tied })
    }

    /// The accumulator of one use of a parameter: `index` is [`Param::index`] or [`Params::head_index`].
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn accumulator_mut(&mut self, index: usize) -> &mut Tensor {
        let head = self.tied && index + 1 == self.accumulators.len();
        let shared = head && faults::on(Fault::TiedEmbeddingSingleAccumulator);
        &mut self.accumulators[if shared { 0 } else { index }]
    }

    /// The gradients of some parameters, in walk order, which this does not have any more. They are complete: nothing is
    /// added to them.
    pub(crate) fn take(&mut self, params: Range<usize>) -> Result<Vec<Tensor>> {
        let host = Device::cpu();
        let take = |tensor: &mut Tensor| {
            let empty = Tensor::zeros(&host, &[0], tensor.dtype())?;
            Ok(std::mem::replace(tensor, empty))
        };
        self.accumulators[params].iter_mut().map(take).collect()
    }

    /// Ends the step: adds the two uses of a tied table, in forward order. Returns the gradients of the parameters in
    /// walk order.
    ///
    /// # Errors
    /// Never for gradients created by [`Grads::zeros`].
    pub fn finish(mut self) -> Result<Vec<Tensor>> {
        if self.tied
            && let Some(head) = self.accumulators.pop()
        {
            ops::accumulate(&mut self.accumulators[0], &head)?;
        }
        Ok(self.accumulators)
    }
}
