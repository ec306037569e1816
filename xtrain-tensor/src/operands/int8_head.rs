//! Head vectors in int8: a key or a value with one scale (docs/numerics.md, "Lossy caches").
use crate::faults::{self, Fault};

/// The layout of a head vector in int8, as 32-bit words: four codes in each word, in the order of memory, then the bits
/// of the scale. Codes that fill the last word are 0.
///
/// A row of such vectors is copied like any other row, and its scales move with its codes.
#[derive(Debug, Clone, Copy)]
pub struct Int8Head;

impl Int8Head {
    /// The number of words of a vector of `hd` values.
    #[inline]
    pub const fn words(hd: usize) -> usize {
        hd.div_ceil(4) + 1
    }

    /// The scale of `x`: its largest magnitude divided by 127. NaN if `x` has a NaN.
    fn scale(x: &[f32]) -> f32 {
        let largest = x.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0);
        f32::from_bits(largest) / 127.0
    }

    /// The code of `x`: the nearest multiple of `scale`, ties to even.
    fn code(x: f32, scale: f32) -> i8 {
        const ROUND: f32 = 12_582_912.0;
        let quotient = x / scale;
        if !quotient.is_finite() {
            return 0; // the scale is 0 or not finite
        }
        if faults::on(Fault::Int8CodesTruncated) {
            return quotient.clamp(-127.0, 127.0) as i8;
        }
        ((quotient + ROUND) - ROUND).clamp(-127.0, 127.0) as i8
    }

    /// Quantizes vectors of `hd` values, one after another, to vectors of [`words`](Self::words).
    pub(crate) fn quantize(x: &[f32], hd: usize, out: &mut [u32]) {
        let (mut scale, words) = (0.0, Self::words(hd));
        for (at, (x, out)) in x.chunks_exact(hd).zip(out.chunks_exact_mut(words)).enumerate() {
            let own = Self::scale(x);
            if at == 0 || !faults::on(Fault::Int8ScaleOfNeighbour) {
                scale = own;
            }
            let (last, codes) = out.split_last_mut().expect("a vector has a word for its scale");
            for (four, word) in x.chunks(4).zip(codes) {
                let mut bytes = [0; 4];
                four.iter().zip(&mut bytes).for_each(|(&x, byte)| *byte = Self::code(x, own) as u8);
                *word = u32::from_ne_bytes(bytes);
            }
            *last = scale.to_bits();
            scale = own;
        }
    }

    /// The `hd` values of each of the vectors `x`.
    pub(crate) fn dequantize(x: &[u32], hd: usize) -> Vec<f32> {
        let mut values = Vec::with_capacity(x.len() / Self::words(hd) * hd);
        for vector in x.chunks_exact(Self::words(hd)) {
            let (scale, codes) = vector.split_last().expect("a vector has a word for its scale");
            let codes = codes.iter().flat_map(|word| word.to_ne_bytes()).take(hd);
            values.extend(codes.map(|code| f32::from(code as i8) * f32::from_bits(*scale)));
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(x: &[f32]) -> (Vec<i8>, f32, Vec<f32>) {
        let mut words = vec![7; Int8Head::words(x.len())];
        Int8Head::quantize(x, x.len(), &mut words);
        let codes = words[..words.len() - 1].iter().flat_map(|w| w.to_ne_bytes()).map(|c| c as i8);
        let (codes, scale) = (codes.take(x.len()).collect(), f32::from_bits(words[words.len() - 1]));
        (codes, scale, Int8Head::dequantize(&words, x.len()))
    }

    #[test]
    fn codes_are_the_nearest_integers_with_ties_to_even() {
        let (codes, scale, values) = round_trip(&[127.0, -127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.49, 126.51]);
        assert_eq!((&codes[..], scale), (&[127, -127, 0, 2, 2, 0, -2, 0, 127][..], 1.0));
        assert_eq!(values, [127.0, -127.0, 0.0, 2.0, 2.0, 0.0, -2.0, 0.0, 127.0]);
    }

    #[test]
    fn zeros_denormals_and_values_that_are_not_finite() {
        let zeros = round_trip(&[0.0, -0.0, 0.0]);
        assert_eq!((zeros.0, zeros.1), (vec![0; 3], 0.0));
        assert!(zeros.2.iter().all(|x| x.to_bits() == 0), "+0");
        let tiny = |n: u32| f32::from_bits(n);
        assert_eq!(round_trip(&[tiny(63), -tiny(5)]).0, [0, 0], "the scale is rounded to 0");
        assert_eq!(round_trip(&[tiny(190), tiny(5)]).0, [127, 5], "the scale is rounded down");
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(round_trip(&[1.0, bad, 2.0]).2.iter().all(|x| x.is_nan()), "{bad}");
        }
        assert_eq!(round_trip(&[f32::MAX, f32::MIN]).0, [127, -127]);
    }
}
