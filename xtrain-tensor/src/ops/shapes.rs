//! Errors about the shapes of operands.
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The error of the operation `op`, which wants the shapes `want` and got those of `xs`.
pub(super) fn misfit(op: &'static str, want: &'static str, xs: &[&Tensor]) -> Error {
    Error::Shape { op, want, got: xs.iter().map(|x| x.shape().to_vec()).collect() }
}

/// Returns [`misfit`] if `wrong`.
pub(super) fn refuse(wrong: bool, op: &'static str, want: &'static str, xs: &[&Tensor]) -> Result<()> {
    if wrong { Err(misfit(op, want, xs)) } else { Ok(()) }
}
