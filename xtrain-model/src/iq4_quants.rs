//! The GGUF types `IQ4_NL` and `IQ4_XS`: elements of 4 bits are indices of a table of 16 values.
use crate::block_quants::{BLOCK, Q4_0_BYTES, factor};
use crate::k_quants::SUPER_BLOCK;

/// The values of the 16 elements.
const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Number of blocks of 32 elements in a super-block.
const PARTS: usize = SUPER_BLOCK / BLOCK;
/// Number of bytes of a super-block of `IQ4_XS`: a factor, the upper bits and the lower nibbles of the scales, nibbles.
pub(crate) const IQ4_XS_BYTES: usize = 2 + 2 + PARTS / 2 + SUPER_BLOCK / 2;

/// Appends `scale value` of 32 elements: the lower nibbles of 16 bytes, then the upper ones.
fn scaled(scale: f32, bytes: &[u8], out: &mut Vec<f32>) {
    let value = |element: u8| scale * f32::from(VALUES[usize::from(element)]);
    out.extend(bytes.iter().map(|byte| value(byte & 0x0f)));
    out.extend(bytes.iter().map(|byte| value(byte >> 4)));
}

/// Appends the values of blocks of `IQ4_NL`: `factor value`.
pub(crate) fn widen_iq4_nl(bytes: &[u8], out: &mut Vec<f32>) {
    for [a, b, q @ ..] in bytes.as_chunks::<Q4_0_BYTES>().0 {
        scaled(factor([*a, *b]), q, out);
    }
}

/// Appends the values of super-blocks of `IQ4_XS`: `(factor (scale - 32)) value`, rounded once. A scale has six bits.
pub(crate) fn widen_iq4_xs(bytes: &[u8], out: &mut Vec<f32>) {
    for [a, b, c, d, rest @ ..] in bytes.as_chunks::<IQ4_XS_BYTES>().0 {
        let (factor, upper) = (factor([*a, *b]), u16::from_le_bytes([*c, *d]));
        let (lower, elements) = rest.split_at(PARTS / 2);
        for (part, q) in elements.as_chunks::<{ BLOCK / 2 }>().0.iter().enumerate() {
            let low = lower[part / 2] >> (4 * (part % 2)) & 0x0f;
            let high = (upper >> (2 * part) & 3) as u8;
            scaled(factor * (f32::from(low | high << 4) - 32.0), q, out);
        }
    }
}
