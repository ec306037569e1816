//! Keys and values as separate tensors: appended, or expanded to the query heads.
//!
//! The growing cache appends with [`cat_seq`]; a naive oracle expands with [`repeat_kv`]. All other caches write keys
//! and values in place, and attention indexes the kv head.
use super::checks::{check_float, misfit, misfit_shapes, refuse, refuse_dtype};
use crate::dispatch::backend;
use crate::error::Result;
use crate::tensor::Tensor;

/// `a` followed by `b` along the sequence axis: `[T, ..]` and `[U, ..]` → `[T + U, ..]`, f32 or bf16.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) unless all but the first dimension agree, and for bf16 rows with an odd number
/// of values, because a GPU copies rows as 32-bit words. [`Error::Dtype`](crate::Error::Dtype) unless both are f32 or
/// both bf16.
pub fn cat_seq(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    const OP: &str = "cat_seq";
    let rest = match (a.shape(), b.shape()) {
        ([_, rest @ ..], [_, tail @ ..]) if rest == tail => rest,
        _ => return Err(misfit(OP, "a [T, ..], b [U, ..]", &[a, b])),
    };
    check_float(OP, a.dtype())?;
    refuse_dtype(a.dtype() != b.dtype(), OP, "a and b in one dtype", b.dtype())?;
    let row_bytes = rest.iter().product::<usize>() * a.dtype().bytes();
    refuse(!row_bytes.is_multiple_of(4), OP, "bf16 rows of an even size", &[a, b])?;
    backend(a.device()).cat_seq(a, b)
}

/// Expands kv heads to query heads: head `h` of the result is kv head `h / (nh / nkv)`. `[N, nkv, hd]` → `[N, nh, hd]`,
/// f32.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) unless `x` has three dimensions and `nkv` divides `n_heads`.
pub fn repeat_kv(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    match *x.shape() {
        [_, nkv, _] if nkv > 0 && n_heads.is_multiple_of(nkv) => backend(x.device()).repeat_kv(x, n_heads),
        _ => Err(misfit("repeat_kv", "x [N, nkv, hd], nkv a divisor of n_heads", &[x])),
    }
}

/// The gradient of [`repeat_kv`]: the query heads of a group added in ascending order, from +0. `dy [N, nh, hd]` →
/// `[N, n_kv_heads, hd]`.
///
/// # Errors
/// As [`repeat_kv`].
pub fn repeat_kv_backward(dy: &Tensor, n_kv_heads: usize) -> Result<Tensor> {
    const OP: &str = "repeat_kv_backward";
    let &[_, nh, _] = dy.shape() else {
        return Err(misfit(OP, "dy [N, nh, hd]", &[dy]));
    };
    if n_kv_heads == 0 || !nh.is_multiple_of(n_kv_heads) {
        return Err(misfit_shapes(OP, "nkv that divides nh", &[&[nh], &[n_kv_heads]]));
    }
    backend(dy.device()).repeat_kv_backward(dy, n_kv_heads)
}
