//! A piece of the values of a tensor.
use std::fmt;

use half::bf16;

use super::quant_block::{BLOCK, QuantBlock, QuantFormat};
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
    /// Blocks of 32 quantized values. Not widened if the device computes with them:
    /// [`WeightPacker`](crate::ops::WeightPacker).
    Blocks(QuantFormat, &'a [QuantBlock]),
}

impl Piece<'_> {
    /// The number of values.
    pub fn count(&self) -> usize {
        match self {
            Piece::F32(values) => values.len(),
            Piece::BF16(values) => values.len(),
            Piece::Blocks(_, blocks) => blocks.len() * BLOCK,
        }
    }

    /// Appends the values, widened exactly.
    pub fn widen(&self, to: &mut Vec<f32>) {
        match self {
            Piece::F32(values) => to.extend_from_slice(values),
            Piece::BF16(values) => to.extend(values.iter().map(|&x| from_bf16(x))),
            Piece::Blocks(format, blocks) => to.extend(blocks.iter().flat_map(|b| b.values(*format))),
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
            Piece::Blocks(_, blocks) if blocks.iter().all(QuantBlock::is_surely_finite) => None,
            Piece::Blocks(format, blocks) => {
                let values = blocks.iter().flat_map(|block| block.values(*format));
                values.enumerate().find(|(_, x)| !x.is_finite())
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

/// What packed matrices are packed from: single values, or blocks of quantized values.
pub(crate) trait PackValue: Copy + fmt::Debug + Send + Sized {
    /// The number of elements of a matrix in one value.
    const ELEMENTS: usize;

    /// Converts the values to this type and passes them to `give`, in parts.
    fn convert(values: Piece<'_>, give: impl FnMut(&[Self]));
}

impl PackValue for f32 {
    const ELEMENTS: usize = 1;

    fn convert(values: Piece<'_>, mut give: impl FnMut(&[f32])) {
        match values {
            Piece::F32(values) => give(values),
            Piece::BF16(values) => in_parts(values, |&x| [from_bf16(x)], give),
            Piece::Blocks(format, blocks) => in_parts(blocks, |b| b.values(format), give),
        }
    }
}

impl PackValue for bf16 {
    const ELEMENTS: usize = 1;

    fn convert(values: Piece<'_>, mut give: impl FnMut(&[bf16])) {
        match values {
            Piece::F32(values) => in_parts(values, |&x| [to_bf16(x)], give),
            Piece::BF16(values) => give(values),
            Piece::Blocks(format, blocks) => in_parts(blocks, |b| b.values(format).map(to_bf16), give),
        }
    }
}

impl PackValue for QuantBlock {
    const ELEMENTS: usize = BLOCK;

    /// Values that are not quantized are not passed on, so that they are missing when the matrix is complete.
    fn convert(values: Piece<'_>, mut give: impl FnMut(&[QuantBlock])) {
        if let Piece::Blocks(_, blocks) = values {
            give(blocks);
        }
    }
}

fn in_parts<S, T, const N: usize>(values: &[S], convert: impl Fn(&S) -> [T; N], mut give: impl FnMut(&[T])) {
    let mut part = Vec::with_capacity((values.len() * N).min(CONVERTED));
    for values in values.chunks(CONVERTED / N) {
        part.clear();
        part.extend(values.iter().flat_map(&convert));
        give(&part);
    }
}
