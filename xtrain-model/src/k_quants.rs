//! The K-quants of GGUF: super-blocks of 256 elements with one or two f16 factors and a scale for each part.
use half::f16;
use xtrain_tensor::faults::{self, Fault};

/// Number of elements in a super-block.
pub(crate) const SUPER_BLOCK: usize = 256;
/// Number of bytes of a super-block of `Q4_K`: two factors, 12 bytes of scales and minima, nibbles.
pub(crate) const Q4_K_BYTES: usize = 2 + 2 + 12 + 128;
/// Number of bytes of a super-block of `Q5_K`: as `Q4_K`, with a fifth bit of each element.
pub(crate) const Q5_K_BYTES: usize = Q4_K_BYTES + 32;
/// Number of bytes of a super-block of `Q6_K`: nibbles, two more bits of each element, 16 signed scales, one factor.
pub(crate) const Q6_K_BYTES: usize = 128 + 64 + 16 + 2;

/// Number of elements of `Q4_K` and `Q5_K` with a common scale and minimum.
const PART: usize = 32;
/// Number of elements of `Q6_K` with a common scale.
const SIXTH_PART: usize = 16;

fn factor(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

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

/// Appends the values of a super-block with scales and minima: `(factor scale) element - (least minimum)`, where the
/// products are exact.
fn with_minima(header: &[u8; 16], element: impl Fn(usize, usize) -> u8, out: &mut Vec<f32>) {
    let [a, b, c, d, packed @ ..] = header;
    let (factor, least) = (factor([*a, *b]), factor([*c, *d]));
    for part in 0..SUPER_BLOCK / PART {
        let (scale, minimum) = scale_and_minimum(packed, part);
        let (scale, mut minimum) = (factor * scale, least * minimum);
        if faults::on(Fault::KQuantMinimumIgnored) {
            minimum = 0.0;
        }
        out.extend((0..PART).map(|i| scale * f32::from(element(part, i)) - minimum));
    }
}

/// The nibble of element `i` of `part`: two parts share 32 bytes.
fn nibble(nibbles: &[u8], part: usize, i: usize) -> u8 {
    nibbles[part / 2 * PART + i] >> (4 * (part % 2)) & 0x0f
}

/// Appends the values of super-blocks of `Q4_K`.
pub(crate) fn widen_q4_k(bytes: &[u8], out: &mut Vec<f32>) {
    for block in bytes.as_chunks::<Q4_K_BYTES>().0 {
        let (header, nibbles) = block.split_first_chunk().expect("a block is longer than its header");
        with_minima(header, |part, i| nibble(nibbles, part, i), out);
    }
}

/// Appends the values of super-blocks of `Q5_K`.
pub(crate) fn widen_q5_k(bytes: &[u8], out: &mut Vec<f32>) {
    for block in bytes.as_chunks::<Q5_K_BYTES>().0 {
        let (header, rest) = block.split_first_chunk().expect("a block is longer than its header");
        let (fifth, nibbles) = rest.split_at(PART);
        with_minima(header, |part, i| nibble(nibbles, part, i) | (fifth[i] >> part & 1) << 4, out);
    }
}

/// Appends the values of super-blocks of `Q6_K`: `(factor scale) (element - 32)`, rounded once.
pub(crate) fn widen_q6_k(bytes: &[u8], out: &mut Vec<f32>) {
    for block in bytes.as_chunks::<Q6_K_BYTES>().0 {
        let (nibbles, rest) = block.split_at(128);
        let (upper, rest) = rest.split_at(64);
        let (scales, last) = rest.split_at(16);
        let factor = factor([last[0], last[1]]);
        for (part, &scale) in scales.iter().enumerate() {
            let scale = factor * f32::from(scale as i8);
            out.extend((part * SIXTH_PART..).take(SIXTH_PART).map(|at| {
                // each half of a super-block has 64 bytes of nibbles and 32 bytes of upper bits
                let (half, at) = (at / 128, at % 128);
                let low = nibbles[64 * half + at % 64] >> (4 * (at / 64)) & 0x0f;
                let high = upper[32 * half + at % 32] >> (2 * (at / 32)) & 3;
                scale * (f32::from(low | high << 4) - 32.0)
            }));
        }
    }
}
