//! The K-quants of GGUF: super-blocks of 256 elements with one or two f16 factors and a scale for each part.
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::QuantBlock;

use crate::block_quants::{BLOCK, factor, uniform};

/// Number of elements in a super-block.
pub(crate) const SUPER_BLOCK: usize = 256;
/// Number of bytes of a super-block of `Q2_K`: scales and minima, elements, two factors.
pub(crate) const Q2_K_BYTES: usize = 16 + 64 + 2 + 2;
/// Number of bytes of a super-block of `Q3_K`: the upper bits, two lower bits of each element, scales, a factor.
pub(crate) const Q3_K_BYTES: usize = 32 + 64 + 12 + 2;
/// Number of bytes of a super-block of `Q4_K`: two factors, 12 bytes of scales and minima, nibbles.
pub(crate) const Q4_K_BYTES: usize = 2 + 2 + 12 + 128;
/// Number of bytes of a super-block of `Q5_K`: as `Q4_K`, with a fifth bit of each element.
pub(crate) const Q5_K_BYTES: usize = Q4_K_BYTES + 32;
/// Number of bytes of a super-block of `Q6_K`: nibbles, two more bits of each element, 16 signed scales, one factor.
pub(crate) const Q6_K_BYTES: usize = 128 + 64 + 16 + 2;

/// Number of blocks of a super-block: the parts of `Q4_K` and `Q5_K`, which have a scale and a minimum each.
const BLOCKS: usize = SUPER_BLOCK / BLOCK;
/// Number of elements of `Q2_K`, `Q3_K` and `Q6_K` with a common scale.
const PART: usize = 16;

/// The 6-bit scale and minimum of part `i`. The first four parts have six bits of a byte each; the others have four
/// bits of the last bytes and the two upper bits of the first ones.
fn scale_and_minimum(packed: &[u8; 12], i: usize) -> (f32, f32) {
    let (scale, minimum) = if i < 4 {
        (packed[i] & 0x3f, packed[i + 4] & 0x3f)
    } else {
        let low = packed[i + 4];
        (low & 0x0f | packed[i - 4] >> 2 & 0x30, low >> 4 | packed[i] >> 2 & 0x30)
    };
    (f32::from(scale), f32::from(minimum))
}

/// The blocks of a super-block with scales and minima: `(factor scale) element - (least minimum)`, where the products
/// are exact.
fn with_minima(header: &[u8; 16], element: impl Fn(usize, usize) -> u8) -> [QuantBlock; BLOCKS] {
    let [a, b, c, d, packed @ ..] = header;
    let (factor, least) = (factor([*a, *b]), factor([*c, *d]));
    std::array::from_fn(|part| {
        let (scale, minimum) = scale_and_minimum(packed, part);
        let mut minimum = least * minimum;
        if faults::on(Fault::KQuantMinimumIgnored) {
            minimum = 0.0;
        }
        uniform(factor * scale, -minimum, (0..BLOCK).map(|i| element(part, i) as i8))
    })
}

/// The blocks of a super-block of parts of 16 elements: the scale and offset of a part, and the code of an element.
fn in_parts(factors: impl Fn(usize) -> (f32, f32), code: impl Fn(usize) -> i8) -> [QuantBlock; BLOCKS] {
    std::array::from_fn(|block| {
        let [first, second] = [0, 1].map(|half| factors(BLOCK / PART * block + half));
        QuantBlock {
            scales: [first.0, second.0],
            offsets: [first.1, second.1],
            codes: std::array::from_fn(|i| code(BLOCK * block + i)),
        }
    })
}

/// The nibble of element `i` of `part`: two parts share 32 bytes.
fn nibble(nibbles: &[u8], part: usize, i: usize) -> u8 {
    nibbles[part / 2 * BLOCK + i] >> (4 * (part % 2)) & 0x0f
}

/// Element `at` of 2 bits: each half of a super-block has 32 bytes, with four elements in each.
fn two_bits(bytes: &[u8], at: usize) -> u8 {
    let (half, at) = (at / 128, at % 128);
    bytes[32 * half + at % 32] >> (2 * (at / 32)) & 3
}

/// A super-block of `Q2_K`: `(factor scale) element - (least minimum)`, where the products are exact.
pub(crate) fn q2_k(block: &[u8; Q2_K_BYTES]) -> [QuantBlock; BLOCKS] {
    let (scales, rest) = block.split_at(16);
    let (elements, last) = rest.split_at(64);
    let (factor, least) = (factor([last[0], last[1]]), factor([last[2], last[3]]));
    let factors =
        |part: usize| (factor * f32::from(scales[part] & 0x0f), -(least * f32::from(scales[part] >> 4)));
    in_parts(factors, |at| two_bits(elements, at) as i8)
}

/// The 6-bit scale of part `part` of `Q3_K`: a nibble of the first eight bytes, and two bits of the last four.
fn scale_of_q3_k(packed: &[u8], part: usize) -> u8 {
    let low = packed[part % 8] >> (4 * (part / 8)) & 0x0f;
    low | (packed[8 + part % 4] >> (2 * (part / 4)) & 3) << 4
}

/// A super-block of `Q3_K`: `(factor (scale - 32)) (element - 4)`, an exact product. The third bits of eight elements
/// are in one byte.
pub(crate) fn q3_k(block: &[u8; Q3_K_BYTES]) -> [QuantBlock; BLOCKS] {
    let (third, rest) = block.split_at(32);
    let (lower, rest) = rest.split_at(64);
    let (scales, last) = rest.split_at(12);
    let factor = factor([last[0], last[1]]);
    let scale = |part| (factor * (f32::from(scale_of_q3_k(scales, part)) - 32.0), 0.0);
    in_parts(scale, |at| (two_bits(lower, at) | (third[at % 32] >> (at / 32) & 1) << 2) as i8 - 4)
}

/// A super-block of `Q4_K`.
pub(crate) fn q4_k(block: &[u8; Q4_K_BYTES]) -> [QuantBlock; BLOCKS] {
    let (header, nibbles) = block.split_first_chunk().expect("a block is longer than its header");
    with_minima(header, |part, i| nibble(nibbles, part, i))
}

/// A super-block of `Q5_K`.
pub(crate) fn q5_k(block: &[u8; Q5_K_BYTES]) -> [QuantBlock; BLOCKS] {
    let (header, rest) = block.split_first_chunk().expect("a block is longer than its header");
    let (fifth, nibbles) = rest.split_at(BLOCK);
    with_minima(header, |part, i| nibble(nibbles, part, i) | (fifth[i] >> part & 1) << 4)
}

/// A super-block of `Q6_K`: `(factor scale) (element - 32)`, rounded once.
pub(crate) fn q6_k(block: &[u8; Q6_K_BYTES]) -> [QuantBlock; BLOCKS] {
    let (nibbles, rest) = block.split_at(128);
    let (upper, rest) = rest.split_at(64);
    let (scales, last) = rest.split_at(16);
    let factor = factor([last[0], last[1]]);
    in_parts(
        |part| (factor * f32::from(scales[part] as i8), 0.0),
        |at| {
            // each half of a super-block has 64 bytes of nibbles
            let low = nibbles[64 * (at / 128) + at % 64] >> (4 * (at % 128 / 64)) & 0x0f;
            (low | two_bits(upper, at) << 4) as i8 - 32
        },
    )
}
