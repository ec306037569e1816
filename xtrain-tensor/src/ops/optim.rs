//! The optimizer: the AdamW update and gradient norms. All f32.
use super::shapes::shapes;
use crate::dispatch::backend;
use crate::error::{Error, Result};
use crate::operands::{AdamWScalars, Update, Updated};
use crate::tensor::Tensor;

/// `g = g clip`, `m = fma(s1, g - m, m)`, `v = fma(s2, v, s3 (g g))`, `w = w keep`,
/// `w = fma(-step, m / (sqrt(v) / c2 + eps), w)`. A vector (gain or bias) is not decayed: its `keep` is 1.
///
/// # Errors
/// [`Error::Shape`] unless all four have one shape.
pub fn adamw(
    w: &mut Tensor,
    g: &Tensor,
    [m, v]: [&mut Tensor; 2],
    clip: f32,
    s: &AdamWScalars,
) -> Result<()> {
    let mut one = [Update { w, g, m, v }];
    check("adamw", &one[0])?;
    backend(g.device()).adamw(&mut one, clip, s)
}

/// [`adamw`] of every parameter, with all gradients multiplied by `min(1, max_norm / (norm + 1e-6))`, where `norm` is
/// the [`global_norm`]. If the norm is not finite, nothing is changed. A GPU needs a few launches for all parameters
/// and copies only the result to the host.
///
/// Order: that of `all`, the walk order of the model.
///
/// # Errors
/// [`Error::Shape`] unless the four tensors of a parameter have one shape.
pub fn adamw_all(all: &mut [Update<'_>], max_norm: f32, s: &AdamWScalars) -> Result<Updated> {
    all.iter().try_for_each(|one| check("adamw_all", one))?;
    match all.first().map(|one| one.w.device().clone()) {
        Some(device) => backend(&device).adamw_all(all, max_norm, s),
        None => Ok(Updated { norm: 0.0, finite: true }),
    }
}

/// The square root of the sum of [`sum_of_squares`] over `gs`, from +0 in their order.
///
/// # Errors
/// [`Error::Dtype`] unless all are f32.
pub fn global_norm(gs: &[&Tensor]) -> Result<f32> {
    match gs.first() {
        Some(g) => backend(g.device()).global_norm(gs),
        None => Ok(0.0),
    }
}

/// The sum of squares of `g`: *sum32* of each row (a vector is one row), then *sum32* over the rows'
/// sums.
///
/// # Errors
/// [`Error::Dtype`] unless `g` is f32.
pub fn sum_of_squares(g: &Tensor) -> Result<f32> {
    backend(g.device()).sum_of_squares(g)
}

fn check(op: &'static str, Update { w, g, m, v }: &Update<'_>) -> Result<()> {
    if [g.shape(), m.shape(), v.shape()].iter().any(|x| *x != w.shape()) {
        return Err(Error::Shape { op, want: "one shape", got: shapes(&[w, g, m, v]) });
    }
    Ok(())
}
