//! Checks that all values of tensors are finite.
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Returns the index of the first of `xs` (f32 or bf16, all on one device) that contains a NaN or an infinity.
/// `None`: all values are finite.
///
/// # Errors
/// [`Error::Dtype`] for a tensor of integers.
pub fn first_non_finite(xs: &[&Tensor]) -> Result<Option<usize>> {
    if let Some(x) = xs.iter().find(|x| !matches!(x.dtype(), Dtype::F32 | Dtype::BF16)) {
        return Err(Error::Dtype { op: "first_non_finite", want: "f32 or bf16", got: x.dtype() });
    }
    match xs.first() {
        Some(first) => backend(first.device()).first_non_finite(xs),
        None => Ok(None),
    }
}
