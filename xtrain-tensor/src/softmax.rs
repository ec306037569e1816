//! Functions of the sampler over a plain slice of logits. They use the widest instruction set of the machine; all
//! instruction sets give the same bits.
use crate::cpu::integer_weights::{FirstAbove, IntegerWeights};
use crate::cpu::lanes::dispatch;
use crate::cpu::tempered::Tempered;
use crate::cpu::{Simd, masked_softmax, softmax};

/// Returns log(sum of exp(z_i)), computed as `m + log(sum of exp(z_i - m))` with m the largest z.
///
/// The result is -inf if the row is empty or all its values are -inf.
///
/// Order: chunks of 128 at 0, 128, ...: m_c is the maximum, l_c the *sum32* of exp(z_i - m_c), +0 if m_c = -inf. Then
/// a *sum32* over the chunks: 32 lanes of fma(l_c, exp(m_c - m), .).
pub fn lse_row(z: &[f32]) -> f32 {
    or_negative_infinity(dispatch(Simd::detect(), softmax::Lse(z)), z)
}

/// Returns `[lse_row(z), lse_row(kept)]`, bit for bit, for the same logits after a mask: `kept` has the values of `z`,
/// or -inf. The exponentials of a chunk whose maximum is kept are computed once for both rows.
///
/// # Panics
/// If the rows differ in length.
pub fn lse_rows_masked(z: &[f32], kept: &[f32]) -> [f32; 2] {
    assert_eq!(z.len(), kept.len(), "logits of one row");
    let [all, some] = dispatch(Simd::detect(), masked_softmax::LseMasked { z, kept });
    [or_negative_infinity(all, z), or_negative_infinity(some, kept)]
}

/// `lse`, which is a NaN if all values of the row are -inf, and then -inf.
fn or_negative_infinity(lse: f32, z: &[f32]) -> f32 {
    let is_empty = || z.iter().all(|&z| z == f32::NEG_INFINITY);
    if lse.is_nan() && is_empty() { f32::NEG_INFINITY } else { lse }
}

/// Replaces `out` by `z_i = x_i / temperature`, and by -inf where the bit in `words` is 0: bit `i % 32` of word `i / 32`
/// is value i. Values without a word have a bit of 0; words without values are ignored. Returns the largest z, -inf if
/// there is none; `None` if an x is a NaN or +inf, whatever its bit.
pub fn tempered(x: &[f32], temperature: f32, words: Option<&[u32]>, out: &mut Vec<f32>) -> Option<f32> {
    out.resize(x.len(), 0.0);
    dispatch(Simd::detect(), Tempered { x, temperature, words, out })
}

/// Replaces `out` by the integer weights of a row: `W_i = w > 0 ? max(1, trunc(w * 2^44)) : 0` with `w = exp(z_i - max)`.
/// Returns their sum. `max`: the largest z. `words`: the bits of the mask that was applied to `z`; the exponentials of
/// words that are 0 are not computed.
///
/// No z may be above `max` or a NaN, and there may be at most 2^19.
pub fn integer_weights(z: &[f32], max: f32, words: Option<&[u32]>, out: &mut Vec<u64>) -> u64 {
    out.resize(z.len(), 0);
    dispatch(Simd::detect(), IntegerWeights { z, max, words, out })
}

/// Returns the lowest `i` with `W_0 + ... + W_i > r`, if there is one. The sum of all weights is below 2^64.
pub fn first_above(weights: &[u64], r: u64) -> Option<usize> {
    dispatch(Simd::detect(), FirstAbove { weights, r })
}

/// Returns the largest value, or -inf if there is none. NaN is skipped. If the largest values are zeros of both
/// signs, either may be returned.
pub fn max(x: &[f32]) -> f32 {
    dispatch(Simd::detect(), softmax::Max(x))
}

/// Appends `exp(z_i - m)` to `out` for each z.
pub fn exp_below(z: &[f32], m: f32, out: &mut Vec<f32>) {
    let start = out.len();
    out.resize(start + z.len(), 0.0);
    dispatch(Simd::detect(), softmax::ExpBelow { z, m, out: &mut out[start..] });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{golden, golden_sizes, simds, val};

    fn vals(first: usize, n: usize) -> Vec<f32> {
        (first..first + n).map(val).collect()
    }

    #[test]
    fn lse_has_the_golden_bits() {
        for k in golden_sizes("U/lse/") {
            let z: Vec<f32> = vals(20_000, k).iter().map(|v| 8.0 * v).collect();
            let want = golden(&format!("U/lse/{k}"));
            assert_eq!(format!("{:08x}", lse_row(&z).to_bits()), want[0], "lse of {k}");
        }
    }

    #[test]
    fn max_finds_the_largest_at_every_index_of_every_length_and_skips_nan() {
        for n in 1..=200 {
            for at in 0..n {
                let mut z: Vec<f32> = vals(0, n).iter().map(|v| -1.0 - v.abs()).collect();
                (z[(at + 1) % n], z[at]) = (f32::NAN, -0.5);
                assert_eq!(max(&z), -0.5, "at {at} of {n}");
            }
        }
        assert_eq!(max(&[]), f32::NEG_INFINITY);
        assert_eq!(max(&[f32::NAN; 40]), f32::NEG_INFINITY);
    }

    /// A row with a removed token, a logit that overflows at temperature 0.7, and zeros of both signs.
    fn row_of_logits(n: usize) -> Vec<f32> {
        let mut x: Vec<f32> = vals(n, n).iter().map(|v| 8.0 * v).collect();
        for (at, value) in [(3, f32::NEG_INFINITY), (5, -3e38), (7, -0.0), (8, 0.0)] {
            x.iter_mut().skip(at).step_by(37).for_each(|x| *x = value);
        }
        x
    }

    /// A mask of `n` tokens, which lacks the last word of a long row.
    fn words_of_mask(n: usize) -> Vec<u32> {
        let words = n.div_ceil(32) - usize::from(n > 64);
        (1..=words as u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect()
    }

    /// Whether `Tempered` has the bits of its definition on every instruction set, with and without a mask.
    fn temperature_and_mask_have_the_bits_of_their_definition() -> bool {
        let same = |n: usize, temperature: f32, masked: bool| {
            let (x, words) = (row_of_logits(n), words_of_mask(n));
            let is_kept = |i: usize| words.get(i / 32).is_some_and(|word| word >> (i % 32) & 1 == 1);
            let value = |(i, x): (usize, &f32)| {
                if !masked || is_kept(i) { x / temperature } else { f32::NEG_INFINITY }
            };
            let want: Vec<f32> = x.iter().enumerate().map(value).collect();
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            simds().into_iter().all(|simd| {
                let mut out = vec![9.0; n];
                let words = masked.then_some(&words[..]);
                let largest = dispatch(simd, Tempered { x: &x, temperature, words, out: &mut out });
                largest == Some(max(&want)) && bits(&out) == bits(&want)
            })
        };
        let cases = [(1.0, false), (1.0, true), (0.7, false), (0.7, true)];
        (0..=100).chain([4096 + 7]).all(|n| cases.into_iter().all(|(t, masked)| same(n, t, masked)))
    }

    #[test]
    fn temperature_and_mask_apply_to_every_value() {
        assert!(temperature_and_mask_have_the_bits_of_their_definition());
        #[cfg(feature = "faults")]
        crate::faults::with(crate::faults::Fault::MaskOfTailIgnored, || {
            assert!(!temperature_and_mask_have_the_bits_of_their_definition());
        });
    }

    #[test]
    fn invalid_logits_are_found_at_every_index_whatever_the_mask() {
        for n in 1..=100 {
            for (at, invalid) in (0..n).flat_map(|at| [(at, f32::NAN), (at, f32::INFINITY)]) {
                let (mut x, mut out) = (row_of_logits(n), Vec::new());
                x[at] = invalid;
                for words in [None, Some(&words_of_mask(n)[..])] {
                    assert_eq!(tempered(&x, 0.7, words, &mut out), None, "{invalid} at {at} of {n}");
                }
            }
        }
    }

    /// Whether `lse_rows_masked` has the bits of `lse_row` on both rows: for every length of a chunk and masks from
    /// none to all.
    fn masked_rows_have_the_bits_of_separate_ones() -> bool {
        let lengths = (1..=130).chain([255, 256, 300, 1000, 4096 + 77]);
        lengths.into_iter().enumerate().all(|(at, n)| {
            (0..=8).all(|keep| {
                let mut z: Vec<f32> = vals(n, n).iter().map(|v| 8.0 * v).collect();
                let kept_at = |i: usize| (i * 7 + at + i / 128) % 8 < keep;
                z[n / 2] = if at % 5 == 0 { f32::NEG_INFINITY } else { z[n / 2] };
                let value = |(i, &z): (usize, &f32)| if kept_at(i) { z } else { f32::NEG_INFINITY };
                let kept: Vec<f32> = z.iter().enumerate().map(value).collect();
                let want = [lse_row(&z), lse_row(&kept)];
                lse_rows_masked(&z, &kept).map(f32::to_bits) == want.map(f32::to_bits)
            })
        })
    }

    #[test]
    fn a_row_and_its_masked_row_have_the_bits_of_two_rows() {
        assert!(masked_rows_have_the_bits_of_separate_ones());
        assert_eq!(lse_rows_masked(&[], &[]), [f32::NEG_INFINITY; 2]);
        #[cfg(feature = "faults")]
        crate::faults::with(crate::faults::Fault::MaximumOfMaskedChunkKept, || {
            assert!(!masked_rows_have_the_bits_of_separate_ones());
        });
    }

    #[test]
    fn removed_logits_keep_their_index_and_add_nothing() {
        let mut z = vec![f32::NEG_INFINITY; 400];
        (z[130], z[131]) = (2.0, 2.0);
        assert_eq!(lse_row(&z), 2.0 + crate::math::log(2.0));
        assert_eq!(lse_row(&[f32::NEG_INFINITY; 200]), f32::NEG_INFINITY);
        for at in [0, 130] {
            let mut z = [f32::NEG_INFINITY; 200];
            z[at] = f32::NAN;
            assert!(lse_row(&z).is_nan() && lse_rows_masked(&z, &z).iter().all(|lse| lse.is_nan()), "{at}");
        }
        assert_eq!(lse_row(&[]), f32::NEG_INFINITY);
    }
}
