//! Operations that the GPU backend defers, so that the operation that reads the result can be fused with them.
//!
//! Fusion is private to this backend. Callers write `rms_norm`, `linears`, `swiglu` and `linear_add`; the results are
//! bit-identical with and without fusion.
pub(super) mod heads;
mod own_slots;

use super::linear::several::{FUSED_NORM_MAX_ROWS, Source};
use super::linear::{self, Epilogue, NormEpilogue};
use super::{At, Deferred, Gpu, norm};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::{Affine, Norm};
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

/// `linear_add` of more than [`FUSED_NORM_MAX_ROWS`] rows. The norm that reads the sum runs in its epilogue.
#[derive(Debug, Clone)]
pub(super) struct DeferredLinearAdd {
    h: Tensor,
    x: Tensor,
    w: Tensor,
    bias: Option<Tensor>,
}

impl DeferredLinearAdd {
    fn epilogue(&self) -> Epilogue<'_> {
        Epilogue { bias: self.bias.as_ref(), residual: Some(&self.h), norm: None }
    }
}

impl Deferred for DeferredLinearAdd {
    fn launch(&self, gpu: &Gpu, to: At) -> Result<()> {
        linear::linear_into(gpu, &self.x, &self.w, self.epilogue(), Dtype::F32, to)
    }
}

/// `rms_norm`; all operands have been checked.
pub(super) fn rms_norm(gpu: &Gpu, x: &Tensor, norm: Norm<'_>, out: Dtype) -> Result<Tensor> {
    let y = Tensor::on_gpu(gpu, x.shape(), out)?;
    // A reshaped tensor shares the buffer and its deferred operation, but not the rows that are normalized.
    if let Some(sum) = x.deferred::<DeferredLinearAdd>().filter(|sum| sum.h.shape() == x.shape()) {
        let epilogue = Epilogue { norm: Some(NormEpilogue { norm, out: &y }), ..sum.epilogue() };
        x.write_deferred(|to| linear::linear_into(gpu, &sum.x, &sum.w, epilogue, Dtype::F32, to))?;
        return Ok(y);
    }
    match *x.shape() {
        [n, _] if n <= FUSED_NORM_MAX_ROWS && x.dtype() == Dtype::F32 => {
            y.defer(DeferredNorm { x: x.clone(), gain: norm.gain.clone(), eps: norm.eps, out });
        }
        _ => norm::rms_norm_into(gpu, x, norm, out, y.at(gpu, out)?)?,
    }
    Ok(y)
}

/// `linear_add`; all operands have been checked.
pub(super) fn linear_add(gpu: &Gpu, h: &Tensor, x: &Tensor, w: Affine<'_>) -> Result<Tensor> {
    if x.shape()[0] <= FUSED_NORM_MAX_ROWS {
        let epilogue = Epilogue { bias: w.bias, residual: Some(h), norm: None };
        return linear::linear(gpu, x, w.weight, epilogue, Dtype::F32);
    }
    let y = Tensor::on_gpu(gpu, h.shape(), Dtype::F32)?;
    let (h, x, w, bias) = (h.clone(), x.clone(), w.weight.matrix()?.clone(), w.bias.cloned());
    y.defer(DeferredLinearAdd { h, x, w, bias });
    Ok(y)
}

#[cfg(test)]
mod tests;
