//! Keys and values in int8, with one scale for each head vector: lossy, for caches only.
use super::checks::{check_float, misfit, refuse, refuse_dtype};
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::{AttnMask, Heads, Int8Head};
use crate::tensor::Tensor;

/// Each head vector of `x [N, H, hd]`, f32 or bf16, in int8: `[N, H, words]` u32 in the layout of [`Int8Head`]. The
/// scale is the largest magnitude divided by 127; a code is the nearest integer, ties to even (docs/numerics.md, "Lossy
/// caches").
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) unless `x` has three dimensions,
/// [`Error::Dtype`](crate::Error::Dtype) unless it is f32 or bf16, [`Error::Argument`](crate::Error::Argument) on a GPU
/// for a head size that is not a multiple of 8.
pub fn quantize_heads(x: &Tensor) -> Result<Tensor> {
    const OP: &str = "quantize_heads";
    refuse(!matches!(x.shape(), &[_, _, hd] if hd > 0), OP, "x [N, H, hd]", &[x])?;
    check_float(OP, x.dtype())?;
    backend(x.device()).quantize_heads(x)
}

/// [`attention`](super::attention) over keys and values `[S, nkv, words]` that
/// [`quantize_heads`] has quantized: the bits of the attention over their dequantized values, rounded to the dtype of
/// `q [N, nh, hd]`.
///
/// # Errors
/// As [`attention`](super::attention).
pub fn int8_attention(q: &Tensor, k: &Tensor, v: &Tensor, mask: &AttnMask<'_>) -> Result<Tensor> {
    const OP: &str = "int8_attention";
    const SHAPES: &str =
        "q [N, nh, hd], k and v [S, nkv, words of hd], nh at least 1, nkv a divisor of nh, hd at most 256";
    let (&[_, nh, hd], &[_, nkv, words]) = (q.shape(), k.shape()) else {
        return Err(misfit(OP, SHAPES, &[q, k, v]));
    };
    let fits = words == Int8Head::words(hd)
        && (1..=256).contains(&hd)
        && nh > 0
        && nkv > 0
        && nh.is_multiple_of(nkv);
    refuse(!fits || k.shape() != v.shape(), OP, SHAPES, &[q, k, v])?;
    check_float(OP, q.dtype())?;
    for x in [k, v] {
        refuse_dtype(x.dtype() != Dtype::U32, OP, "k and v in u32, words of int8 codes", x.dtype())?;
    }
    mask.check(OP, q.shape()[0], k.shape()[0])?;
    backend(q.device()).int8_attention([q, k, v], Heads { nh, nkv, hd }, mask)
}
