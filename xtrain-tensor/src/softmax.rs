//! Rows of logits outside a tensor: what a sampler asks of them. The widest instructions of the
//! machine do the work; all give the same bits.
use crate::cpu::lanes::dispatch;
use crate::cpu::{Simd, softmax};

/// `m + log(sum of exp(z_i - m))`, m the largest z: the logarithm of the sum of exponentials. -inf for
/// an empty row or one of -inf alone.
///
/// Order: chunks of 128 at 0, 128, ...: m_c the largest, l_c the *sum32* of exp(z_i - m_c), +0 where
/// m_c = -inf; then over the chunks the 32 lanes of fma(l_c, exp(m_c - m), .).
pub fn lse_row(z: &[f32]) -> f32 {
    if max(z) == f32::NEG_INFINITY {
        return f32::NEG_INFINITY;
    }
    dispatch(Simd::detect(), softmax::Lse { z, parts: &mut Vec::new() })
}

/// The largest value (of equal zeros, either), -inf for none; a NaN is passed over.
pub fn max(x: &[f32]) -> f32 {
    dispatch(Simd::detect(), softmax::Max(x))
}

/// Appends `exp(z_i - m)` for each z to `out`.
pub fn exp_below(z: &[f32], m: f32, out: &mut Vec<f32>) {
    let start = out.len();
    out.resize(start + z.len(), 0.0);
    dispatch(Simd::detect(), softmax::ExpBelow { z, m, out: &mut out[start..] });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{golden, golden_sizes, val};

    fn vals(first: usize, n: usize) -> Vec<f32> {
        (first..first + n).map(val).collect()
    }

    #[test]
    fn lse_has_its_golden_bits() {
        for k in golden_sizes("U/lse/") {
            let z: Vec<f32> = vals(20_000, k).iter().map(|v| 8.0 * v).collect();
            let want = golden(&format!("U/lse/{k}"));
            assert_eq!(format!("{:08x}", lse_row(&z).to_bits()), want[0], "lse of {k}");
        }
    }

    #[test]
    fn the_largest_is_found_at_every_place_of_every_length_and_a_nan_is_passed_over() {
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

    #[test]
    fn removed_logits_keep_their_place_and_add_nothing() {
        let mut z = vec![f32::NEG_INFINITY; 400];
        (z[130], z[131]) = (2.0, 2.0);
        assert_eq!(lse_row(&z), 2.0 + crate::math::log(2.0));
        assert_eq!(lse_row(&[f32::NEG_INFINITY; 200]), f32::NEG_INFINITY);
        assert_eq!(lse_row(&[]), f32::NEG_INFINITY);
    }
}
