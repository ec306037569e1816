//! The optimizer: the AdamW update and gradient norms. All f32.
use crate::dispatch::backend;
use crate::error::Result;
use crate::operands::{AdamWScalars, Update, Updated};
use crate::tensor::Tensor;

/// The AdamW update of every parameter: `g = g clip`, `m = fma(s1, g - m, m)`, `v = fma(s2, v, s3 (g g))`, `w = w
/// keep`, `w = fma(-step, m / (sqrt(v) / c2 + eps), w)`. A vector (gain or bias) is not decayed: its `keep` is 1.
///
/// `clip` is `min(1, max_norm / (norm + 1e-6))`. `norm` is the square root of the sum of [`sum_of_squares`] over all
/// gradients. If it is not finite, nothing is changed. A GPU needs a few launches for all parameters and copies only
/// the result to the host.
///
/// Order: the norm adds from +0 in the order of `all`, the walk order of the model.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) unless the four tensors of a parameter have one shape.
pub fn adamw_all(all: &mut [Update<'_>], max_norm: f32, s: &AdamWScalars) -> Result<Updated> {
    Update::check("adamw_all", all)?;
    match all.first().map(|one| one.w.device().clone()) {
        Some(device) => backend(&device).adamw_all(all, max_norm, s),
        None => Ok(Updated { norm: 0.0, finite: true }),
    }
}

/// The sum of squares of `g`: *sum32* of each row (a vector is one row), then *sum32* over the rows'
/// sums.
///
/// [`adamw_all`] adds these sums over all gradients. This operation exposes one of them, for comparison with the sums
/// of the independent implementations (`U/sum32` in tests/data/golden_bits).
///
/// # Errors
/// [`Error::Dtype`](crate::Error::Dtype) unless `g` is f32.
pub fn sum_of_squares(g: &Tensor) -> Result<f32> {
    backend(g.device()).sum_of_squares(g)
}
