//! The block types of GGUF with 32 elements and one or two f16 factors.
use half::f16;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::QuantBlock;

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

/// A block with one factor and one offset.
pub(crate) fn uniform(scale: f32, offset: f32, codes: impl Iterator<Item = i8>) -> QuantBlock {
    let mut block = QuantBlock { scales: [scale; 2], offsets: [offset; 2], codes: [0; BLOCK] };
    block.codes.iter_mut().zip(codes).for_each(|(to, code)| *to = code);
    block
}

/// The 32 elements of 4 bits: the lower nibbles of all bytes, then the upper ones.
pub(crate) fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().map(|byte| byte & 0x0f).chain(bytes.iter().map(|byte| byte >> 4))
}

/// The 32 elements of 5 bits: a nibble, and bit `i` of `fifth` as the upper bit of element `i`.
fn five_bits(fifth: [u8; 4], bytes: &[u8]) -> impl Iterator<Item = u8> {
    let fifth = if faults::on(Fault::QuantFifthBitIgnored) { 0 } else { u32::from_le_bytes(fifth) };
    nibbles(bytes).enumerate().map(move |(i, low)| low | ((fifth >> i & 1) as u8) << 4)
}

/// A block of `Q8_0`: `factor element`.
pub(crate) fn q8_0([a, b, q @ ..]: &[u8; Q8_0_BYTES]) -> QuantBlock {
    uniform(factor([*a, *b]), 0.0, q.iter().map(|&q| q as i8))
}

/// A block of `Q4_0`: `factor (element - 8)`.
pub(crate) fn q4_0([a, b, q @ ..]: &[u8; Q4_0_BYTES]) -> QuantBlock {
    uniform(factor([*a, *b]), 0.0, nibbles(q).map(|q| q as i8 - 8))
}

/// A block of `Q4_1`: `factor element + minimum`, where the product is exact.
pub(crate) fn q4_1([a, b, c, d, q @ ..]: &[u8; Q4_1_BYTES]) -> QuantBlock {
    uniform(factor([*a, *b]), factor([*c, *d]), nibbles(q).map(|q| q as i8))
}

/// A block of `Q5_0`: `factor (element - 16)`.
pub(crate) fn q5_0([a, b, e, f, g, h, q @ ..]: &[u8; Q5_0_BYTES]) -> QuantBlock {
    uniform(factor([*a, *b]), 0.0, five_bits([*e, *f, *g, *h], q).map(|q| q as i8 - 16))
}

/// A block of `Q5_1`: `factor element + minimum`, where the product is exact.
pub(crate) fn q5_1([a, b, c, d, e, f, g, h, q @ ..]: &[u8; Q5_1_BYTES]) -> QuantBlock {
    uniform(factor([*a, *b]), factor([*c, *d]), five_bits([*e, *f, *g, *h], q).map(|q| q as i8))
}
