//! Blocks of quantized weights.

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
        let bound = |half: usize| self.scales[half].abs() * 128.0 + self.offsets[half].abs();
        bound(0).is_finite() && bound(1).is_finite()
    }

    /// The elements.
    pub fn values(&self, format: QuantFormat) -> [f32; BLOCK] {
        std::array::from_fn(|i| {
            let (scale, code) = (self.scales[i / HALF], f32::from(self.codes[i]));
            if format.offsets { scale.mul_add(code, self.offsets[i / HALF]) } else { scale * code }
        })
    }
}
