//! Blocks of quantized weights.
use crate::faults::{self, Fault};
use crate::math::fma;

/// Elements of a block.
pub(crate) const BLOCK: usize = 32;
/// Elements that share a scale and an offset.
pub(crate) const HALF: usize = BLOCK / 2;

/// The number of bits of a code in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeBits {
    /// Codes of -8 to 7, or with offsets 0 to 15.
    Four,
    /// Codes of -128 to 127.
    Eight,
}

/// What the blocks of a matrix have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantFormat {
    /// The range of the codes.
    pub bits: CodeBits,
    /// Whether the halves of a block have different scales and offsets.
    pub halves: bool,
    /// Whether the blocks have offsets.
    pub offsets: bool,
}

/// 32 consecutive elements of a row of a quantized matrix. Element i is `scales[i / 16] * codes[i]`, with offsets
/// `fma(scales[i / 16], codes[i], offsets[i / 16])`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantBlock {
    /// The scales of the halves. Equal unless the format has [`QuantFormat::halves`].
    pub scales: [f32; 2],
    /// The offsets of the halves, read if the format has [`QuantFormat::offsets`].
    pub offsets: [f32; 2],
    /// The codes.
    pub codes: [i8; BLOCK],
}

impl QuantBlock {
    /// A block whose elements are zero.
    pub(crate) const ZERO: QuantBlock = QuantBlock { scales: [0.0; 2], offsets: [0.0; 2], codes: [0; BLOCK] };

    /// Whether the largest possible code gives finite elements with these scales and offsets.
    pub(super) fn is_surely_finite(&self) -> bool {
        let offset =
            |half: usize| if faults::on(Fault::OffsetsNotChecked) { 0.0 } else { self.offsets[half].abs() };
        let bound = |half: usize| self.scales[half].abs() * 128.0 + offset(half);
        bound(0).is_finite() && bound(1).is_finite()
    }

    /// The elements.
    pub fn values(&self, format: QuantFormat) -> [f32; BLOCK] {
        std::array::from_fn(|i| {
            let (scale, code) = (self.scales[i / HALF], f32::from(self.codes[i]));
            if format.offsets { fma(scale, code, self.offsets[i / HALF]) } else { scale * code }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Piece;
    use super::*;

    /// The first element that is not finite, for an infinity or a NaN as each scale and each offset of a block.
    fn first_non_finite() -> Vec<Option<usize>> {
        let format = QuantFormat { bits: CodeBits::Four, halves: true, offsets: true };
        let finite = QuantBlock { scales: [1.0; 2], offsets: [-2.0; 2], codes: [3; BLOCK] };
        let changed = |x: f32| {
            let mut blocks = [finite; 4];
            (blocks[0].scales[0], blocks[1].scales[1]) = (x, x);
            (blocks[2].offsets[0], blocks[3].offsets[1]) = (x, x);
            blocks
        };
        let first = |block| Piece::Blocks(format, &[finite, block]).first_non_finite().map(|(at, _)| at);
        assert_eq!(first(finite), None);
        [f32::INFINITY, f32::NAN].into_iter().flat_map(changed).map(first).collect()
    }

    #[test]
    fn scales_and_offsets_that_are_not_finite_are_found() {
        let each = [0, HALF, 0, HALF].map(|at| Some(BLOCK + at));
        assert_eq!(first_non_finite(), [each, each].concat());
        #[cfg(feature = "faults")]
        assert!(faults::with(Fault::OffsetsNotChecked, first_non_finite).contains(&None));
    }
}
