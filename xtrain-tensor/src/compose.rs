//! Fused operations composed of their parts, for backends without a fused kernel. By definition, a fused operation is
//! bit-identical to its parts.
use crate::backend::Backend;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::{Affine, Norm, RopeArgs, Samples, UnrotatedHeads};
use crate::tensor::Tensor;

/// `linear` with each weight, in the weights' dtype.
pub(crate) fn linears(b: &dyn Backend, x: &Tensor, ws: &[Affine<'_>]) -> Result<Vec<Tensor>> {
    ws.iter().map(|&w| b.linear(x, w, w.weight.dtype())).collect()
}

/// `silu_mul` of the two `linear` results.
pub(crate) fn swiglu(b: &dyn Backend, x: &Tensor, [gate, up]: [Affine<'_>; 2]) -> Result<Tensor> {
    let dtype = gate.weight.dtype();
    b.silu_mul(&b.linear(x, gate, dtype)?, &b.linear(x, up, dtype)?, dtype)
}

/// `rms_norm` over each head in f32, then `rope_rows`.
pub(crate) fn norm_rope(b: &dyn Backend, x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<Tensor> {
    b.rope_rows(&b.rms_norm(x, norm, Dtype::F32)?, rope, x.dtype())
}

/// `rope_backward`, then `rms_norm_backward` over `(row, head)` pairs.
pub(crate) fn norm_rope_backward(
    b: &dyn Backend,
    x: &Tensor,
    norm: Norm<'_>,
    rope: RopeArgs<'_>,
    dy: &Tensor,
    dw: &mut Tensor,
    samples: &Samples,
) -> Result<Tensor> {
    let pairs = samples.times(x.shape()[1]);
    b.rms_norm_backward(x, norm, &b.rope_backward(dy, rope)?, dw, &pairs, None)
}

/// `norm_rope`, or `rope_rows` if there is no QK-norm, and `scatter_rows`.
pub(crate) fn write_heads(
    b: &dyn Backend,
    new: &UnrotatedHeads<'_>,
    [k_pool, v_pool]: [&mut Tensor; 2],
) -> Result<Tensor> {
    let UnrotatedHeads { q, k, v, norms, rope, slots } = *new;
    let rotated = |x: &Tensor, norm: Option<Norm<'_>>| match norm {
        Some(norm) => b.norm_rope(x, norm, rope),
        None => b.rope_rows(x, rope, x.dtype()),
    };
    b.scatter_rows(k_pool, &rotated(k, norms.map(|n| n.k()))?, slots)?;
    b.scatter_rows(v_pool, v, slots)?;
    rotated(q, norms.map(|n| n.q()))
}

/// The square root of the sum of `sums`, from +0 in their order.
pub(crate) fn global_norm(sums: &[f32]) -> f32 {
    sums.iter().fold(0f32, |total, sum| total + sum).sqrt()
}

/// The clip factor of gradients with the global norm `norm`: `min(1, max_norm / (norm + 1e-6))`.
pub(crate) fn clip(norm: f32, max_norm: f32) -> f32 {
    let ratio = max_norm / (norm + 1e-6);
    if ratio < 1.0 { ratio } else { 1.0 }
}
