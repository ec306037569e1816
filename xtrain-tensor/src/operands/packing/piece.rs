//! A piece of the values of a tensor.
use std::fmt;

use half::bf16;

use crate::dtype::{from_bf16, to_bf16};

/// Elements per converted part.
const CONVERTED: usize = 1 << 15;

/// Consecutive values of a tensor, row-major, as read from a file.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'a> {
    /// f32.
    F32(&'a [f32]),
    /// bf16. Not widened if the packed type is bf16.
    BF16(&'a [bf16]),
}

impl Piece<'_> {
    /// The number of values.
    pub fn count(&self) -> usize {
        match self {
            Piece::F32(values) => values.len(),
            Piece::BF16(values) => values.len(),
        }
    }

    /// Appends the values, widened exactly.
    pub fn widen(&self, to: &mut Vec<f32>) {
        match self {
            Piece::F32(values) => to.extend_from_slice(values),
            Piece::BF16(values) => to.extend(values.iter().map(|&x| from_bf16(x))),
        }
    }

    /// The index and the value of the first NaN or infinity. `None`: all values are finite.
    pub fn first_non_finite(&self) -> Option<(usize, f32)> {
        // a conjunction over all values is vectorized, a search with an early exit is not
        let finite = |x: &bf16| x.to_bits() & 0x7f80 != 0x7f80;
        match self {
            Piece::F32(values) if values.iter().fold(true, |all, x| all & x.is_finite()) => None,
            Piece::F32(values) => values.iter().copied().enumerate().find(|(_, x)| !x.is_finite()),
            Piece::BF16(values) if values.iter().fold(true, |all, x| all & finite(x)) => None,
            Piece::BF16(values) => {
                values.iter().position(|x| !finite(x)).map(|at| (at, from_bf16(values[at])))
            }
        }
    }
}

impl<'a> From<&'a [f32]> for Piece<'a> {
    fn from(values: &'a [f32]) -> Piece<'a> {
        Piece::F32(values)
    }
}

impl<'a> From<&'a [bf16]> for Piece<'a> {
    fn from(values: &'a [bf16]) -> Piece<'a> {
        Piece::BF16(values)
    }
}

/// An element type of packed matrices.
pub(crate) trait PackValue: Copy + fmt::Debug + Send + Sized {
    /// Converts the values to this type and passes them to `give`, in parts.
    fn convert(values: Piece<'_>, give: impl FnMut(&[Self]));
}

impl PackValue for f32 {
    fn convert(values: Piece<'_>, mut give: impl FnMut(&[f32])) {
        match values {
            Piece::F32(values) => give(values),
            Piece::BF16(values) => in_parts(values, from_bf16, give),
        }
    }
}

impl PackValue for bf16 {
    fn convert(values: Piece<'_>, mut give: impl FnMut(&[bf16])) {
        match values {
            Piece::F32(values) => in_parts(values, to_bf16, give),
            Piece::BF16(values) => give(values),
        }
    }
}

fn in_parts<S: Copy, T>(values: &[S], convert: impl Fn(S) -> T, mut give: impl FnMut(&[T])) {
    let mut part = Vec::with_capacity(values.len().min(CONVERTED));
    for values in values.chunks(CONVERTED) {
        part.clear();
        part.extend(values.iter().map(|&x| convert(x)));
        give(&part);
    }
}
