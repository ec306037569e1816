//! Operations that the GPU backend defers, so that the operation that reads the result can be fused with them.
//!
//! Fusion is private to this backend. Callers write `rms_norm`, `linears` and `swiglu`; the results are bit-identical
//! with and without fusion.
pub(super) mod heads;
mod own_slots;

use super::linear::several::{FUSED_NORM_MAX_ROWS, Source};
use super::{At, Deferred, Gpu, norm};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::Norm;
use crate::tensor::Tensor;

/// `rms_norm` of at most [`FUSED_NORM_MAX_ROWS`] rows. The products that read it compute the norm in their prologue.
#[derive(Debug, Clone)]
pub(super) struct DeferredNorm {
    pub(super) x: Tensor,
    gain: Tensor,
    eps: f32,
    out: Dtype,
}

impl DeferredNorm {
    /// The norm as the left operand of products.
    pub(super) fn source(&self) -> Source<'_> {
        Source::Normed(&self.x, Norm { gain: &self.gain, eps: self.eps })
    }
}

impl Deferred for DeferredNorm {
    fn launch(&self, gpu: &Gpu, to: At) -> Result<()> {
        norm::rms_norm_into(gpu, &self.x, Norm { gain: &self.gain, eps: self.eps }, self.out, to)
    }
}

/// `rms_norm`; all operands have been checked.
pub(super) fn rms_norm(gpu: &Gpu, x: &Tensor, norm: Norm<'_>, out: Dtype) -> Result<Tensor> {
    norm.gain.check_at(gpu, Dtype::F32)?;
    let y = Tensor::on_gpu(gpu, x.shape(), out)?;
    match *x.shape() {
        [n, _] if n <= FUSED_NORM_MAX_ROWS && x.dtype() == Dtype::F32 => {
            y.defer(DeferredNorm { x: x.clone(), gain: norm.gain.clone(), eps: norm.eps, out });
        }
        _ => norm::rms_norm_into(gpu, x, norm, out, y.at(gpu, out)?)?,
    }
    Ok(y)
}

#[cfg(test)]
mod tests;
