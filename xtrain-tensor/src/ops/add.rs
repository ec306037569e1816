//! Addition.
use super::checks::refuse;
use crate::dispatch::backend;
use crate::error::Result;
use crate::tensor::Tensor;

/// `a + b`, both f32 of one shape.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the shapes differ, [`Error::Dtype`](crate::Error::Dtype) unless both are f32.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check(a, b)?;
    backend(a.device()).add(a, b)
}

/// `a = a + b`, both f32 of one shape.
///
/// # Errors
/// As [`add`].
pub fn accumulate(a: &mut Tensor, b: &Tensor) -> Result<()> {
    check(a, b)?;
    backend(&a.device().clone()).accumulate(a, b)
}

fn check(a: &Tensor, b: &Tensor) -> Result<()> {
    refuse(a.shape() != b.shape(), "add", "one shape", &[a, b])
}
