//! Checks of operands that several operations share.
use crate::dtype::Dtype;
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

/// Returns [`Error::Dtype`] if `wrong`.
pub(super) fn refuse_dtype(wrong: bool, op: &'static str, want: &'static str, got: Dtype) -> Result<()> {
    if wrong { Err(Error::Dtype { op, want, got }) } else { Ok(()) }
}

/// Refuses an index that is not below `bound`.
pub(super) fn check_index(op: &'static str, what: &'static str, bound: usize, indices: &[u32]) -> Result<()> {
    match indices.iter().position(|&index| index as usize >= bound) {
        Some(at) => Err(Error::Index { op, what, at, got: u64::from(indices[at]), bound: bound as u64 }),
        None => Ok(()),
    }
}
