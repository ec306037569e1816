//! The GGUF types `IQ4_NL` and `IQ4_XS`: elements of 4 bits are indices of a table of 16 values.
use xtrain_tensor::ops::QuantBlock;

use crate::block_quants::{BLOCK, Q4_0_BYTES, factor, nibbles, uniform};
use crate::k_quants::SUPER_BLOCK;

/// The values of the 16 elements.
const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Number of blocks of 32 elements in a super-block.
const PARTS: usize = SUPER_BLOCK / BLOCK;
/// Number of bytes of a super-block of `IQ4_XS`: a factor, the upper bits and the lower nibbles of the scales, nibbles.
pub(crate) const IQ4_XS_BYTES: usize = 2 + 2 + PARTS / 2 + SUPER_BLOCK / 2;

/// `scale value` of 32 elements: the lower nibbles of 16 bytes, then the upper ones.
fn scaled(scale: f32, bytes: &[u8]) -> QuantBlock {
    uniform(scale, 0.0, nibbles(bytes).map(|element| VALUES[usize::from(element)]))
}

/// A block of `IQ4_NL`: `factor value`.
pub(crate) fn iq4_nl([a, b, q @ ..]: &[u8; Q4_0_BYTES]) -> QuantBlock {
    scaled(factor([*a, *b]), q)
}

/// A super-block of `IQ4_XS`: `(factor (scale - 32)) value`, rounded once. A scale has six bits.
pub(crate) fn iq4_xs([a, b, c, d, rest @ ..]: &[u8; IQ4_XS_BYTES]) -> [QuantBlock; PARTS] {
    let (factor, upper) = (factor([*a, *b]), u16::from_le_bytes([*c, *d]));
    let (lower, elements) = rest.split_at(PARTS / 2);
    std::array::from_fn(|part| {
        let low = lower[part / 2] >> (4 * (part % 2)) & 0x0f;
        let high = (upper >> (2 * part) & 3) as u8;
        let q = &elements[part * BLOCK / 2..][..BLOCK / 2];
        scaled(factor * (f32::from(low | high << 4) - 32.0), q)
    })
}
