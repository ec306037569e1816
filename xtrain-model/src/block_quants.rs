//! The block types of GGUF with 32 elements and one or two f16 factors.
use half::f16;
use xtrain_tensor::faults::{self, Fault};

/// Number of elements in a block.
pub(crate) const BLOCK: usize = 32;
/// Number of bytes of the nibbles of a block.
const NIBBLES: usize = BLOCK / 2;
/// Number of bytes of a block of `Q8_0`: a factor, signed bytes.
pub(crate) const Q8_0_BYTES: usize = 2 + BLOCK;
/// Number of bytes of a block of `Q4_0` and of `IQ4_NL`: a factor, nibbles.
pub(crate) const Q4_0_BYTES: usize = 2 + NIBBLES;
/// Number of bytes of a block of `Q4_1`: a factor, a minimum, nibbles.
pub(crate) const Q4_1_BYTES: usize = 2 + 2 + NIBBLES;
/// Number of bytes of a block of `Q5_0`: a factor, the fifth bits, nibbles.
pub(crate) const Q5_0_BYTES: usize = 2 + 4 + NIBBLES;
/// Number of bytes of a block of `Q5_1`: a factor, a minimum, the fifth bits, nibbles.
pub(crate) const Q5_1_BYTES: usize = 2 + 2 + 4 + NIBBLES;

/// The f16 factor `bytes`, widened to f32.
pub(crate) fn factor(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

/// The 32 elements of 4 bits: the lower nibbles of all bytes, then the upper ones.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().map(|byte| byte & 0x0f).chain(bytes.iter().map(|byte| byte >> 4))
}

/// The 32 elements of 5 bits: a nibble, and bit `i` of `fifth` as the upper bit of element `i`.
fn five_bits(fifth: [u8; 4], bytes: &[u8]) -> impl Iterator<Item = u8> {
    let fifth = if faults::on(Fault::QuantFifthBitIgnored) { 0 } else { u32::from_le_bytes(fifth) };
    nibbles(bytes).enumerate().map(move |(i, low)| low | ((fifth >> i & 1) as u8) << 4)
}

/// Appends the values of blocks of `Q8_0`: `factor element`.
pub(crate) fn widen_q8_0(bytes: &[u8], out: &mut Vec<f32>) {
    for [a, b, q @ ..] in bytes.as_chunks::<Q8_0_BYTES>().0 {
        let factor = factor([*a, *b]);
        out.extend(q.iter().map(|&q| factor * f32::from(q as i8)));
    }
}

/// Appends the values of blocks of `Q4_0`: `factor (element - 8)`.
pub(crate) fn widen_q4_0(bytes: &[u8], out: &mut Vec<f32>) {
    for [a, b, q @ ..] in bytes.as_chunks::<Q4_0_BYTES>().0 {
        let factor = factor([*a, *b]);
        out.extend(nibbles(q).map(|q| factor * (f32::from(q) - 8.0)));
    }
}

/// Appends the values of blocks of `Q4_1`: `factor element + minimum`, where the product is exact.
pub(crate) fn widen_q4_1(bytes: &[u8], out: &mut Vec<f32>) {
    for [a, b, c, d, q @ ..] in bytes.as_chunks::<Q4_1_BYTES>().0 {
        let (factor, minimum) = (factor([*a, *b]), factor([*c, *d]));
        out.extend(nibbles(q).map(|q| factor * f32::from(q) + minimum));
    }
}

/// Appends the values of blocks of `Q5_0`: `factor (element - 16)`.
pub(crate) fn widen_q5_0(bytes: &[u8], out: &mut Vec<f32>) {
    for [a, b, e, f, g, h, q @ ..] in bytes.as_chunks::<Q5_0_BYTES>().0 {
        let factor = factor([*a, *b]);
        out.extend(five_bits([*e, *f, *g, *h], q).map(|q| factor * (f32::from(q) - 16.0)));
    }
}

/// Appends the values of blocks of `Q5_1`: `factor element + minimum`, where the product is exact.
pub(crate) fn widen_q5_1(bytes: &[u8], out: &mut Vec<f32>) {
    for [a, b, c, d, e, f, g, h, q @ ..] in bytes.as_chunks::<Q5_1_BYTES>().0 {
        let (factor, minimum) = (factor([*a, *b]), factor([*c, *d]));
        out.extend(five_bits([*e, *f, *g, *h], q).map(|q| factor * f32::from(q) + minimum));
    }
}
