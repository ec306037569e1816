//! Fused operations composed of their parts, for backends without a fused kernel. By definition, a fused operation is
//! bit-identical to its parts.
use crate::backend::Backend;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::{Affine, GainGradient, Norm, RopeArgs};
use crate::tensor::{Tensor, Tensors};

/// `linear` with each weight, in the weights' dtype.
pub(crate) fn linears(b: &dyn Backend, x: &Tensor, ws: &[Affine<'_>]) -> Result<Tensors> {
    ws.iter().map(|&w| b.linear(x, w, w.weight.dtype())).collect()
}

/// `silu_mul` of the two `linear` results.
pub(crate) fn swiglu(b: &dyn Backend, x: &Tensor, [gate, up]: [Affine<'_>; 2]) -> Result<Tensor> {
    let dtype = gate.weight.dtype();
    b.silu_mul(&b.linear(x, gate, dtype)?, &b.linear(x, up, dtype)?, dtype)
}

/// [`swiglu`], and the two `linear` results.
pub(crate) fn swiglu_kept(b: &dyn Backend, x: &Tensor, [gate, up]: [Affine<'_>; 2]) -> Result<[Tensor; 3]> {
    let dtype = gate.weight.dtype();
    let (gate, up) = (b.linear(x, gate, dtype)?, b.linear(x, up, dtype)?);
    Ok([b.silu_mul(&gate, &up, dtype)?, gate, up])
}

/// `rms_norm` over each head in f32, then `rope_rows`.
pub(crate) fn norm_rope(b: &dyn Backend, x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<Tensor> {
    b.rope_rows(&b.rms_norm(x, norm, Dtype::F32)?, rope, x.dtype())
}

/// `rope_backward`, then `rms_norm_backward` over `(row, head)` pairs, rounded to `out`.
pub(crate) fn norm_rope_backward(
    b: &dyn Backend,
    x: &Tensor,
    norm: Norm<'_>,
    rope: RopeArgs<'_>,
    dy: &Tensor,
    GainGradient { dw, samples }: GainGradient<'_>,
    out: Dtype,
) -> Result<Tensor> {
    let pairs = samples.times(x.shape()[1]);
    b.rms_norm_backward(x, norm, &b.rope_backward(dy, rope)?, dw, &pairs, None)?.cast(out)
}
