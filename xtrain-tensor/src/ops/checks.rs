//! Checks of operands that several operations share.
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The error of the operation `op`, which wants the shapes `want` and got those of `xs`.
pub(super) fn misfit(op: &'static str, want: &'static str, xs: &[&Tensor]) -> Error {
    misfit_shapes(op, want, &xs.iter().map(|x| x.shape()).collect::<Vec<_>>())
}

/// [`misfit`] of operands that are not tensors, with their shapes.
pub(super) fn misfit_shapes(op: &'static str, want: &'static str, got: &[&[usize]]) -> Error {
    Error::Shape { op, want, got: got.iter().map(|shape| shape.to_vec()).collect() }
}

/// Returns [`misfit`] if `wrong`.
pub(super) fn refuse(wrong: bool, op: &'static str, want: &'static str, xs: &[&Tensor]) -> Result<()> {
    if wrong { Err(misfit(op, want, xs)) } else { Ok(()) }
}

pub(super) fn refuse_dtype(wrong: bool, op: &'static str, want: &'static str, got: Dtype) -> Result<()> {
    if wrong { Err(Error::Dtype { op, want, got }) } else { Ok(()) }
}

/// Returns [`Error::Dtype`] unless `dtype` is f32 or bf16.
pub(super) fn check_float(op: &'static str, dtype: Dtype) -> Result<()> {
    refuse_dtype(!matches!(dtype, Dtype::F32 | Dtype::BF16), op, "f32 or bf16", dtype)
}

/// Refuses an index that is not below `bound`.
pub(super) fn check_index(op: &'static str, what: &'static str, bound: usize, indices: &[u32]) -> Result<()> {
    match indices.iter().position(|&index| index as usize >= bound) {
        Some(at) => Err(Error::Index { op, what, at, got: u64::from(indices[at]), bound: bound as u64 }),
        None => Ok(()),
    }
}
