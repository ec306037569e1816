//! Functions of the sampler over a plain slice of logits. They use the widest instruction set of the machine; all
//! instruction sets give the same bits.
use crate::cpu::lanes::dispatch;
use crate::cpu::{Simd, softmax};

/// Returns log(sum of exp(z_i)), computed as `m + log(sum of exp(z_i - m))` with m the largest z.
///
/// The result is -inf if the row is empty or all its values are -inf.
///
/// Order: chunks of 128 at 0, 128, ...: m_c is the maximum, l_c the *sum32* of exp(z_i - m_c), +0 if m_c = -inf. Then
/// a *sum32* over the chunks: 32 lanes of fma(l_c, exp(m_c - m), .).
pub fn lse_row(z: &[f32]) -> f32 {
    if max(z) == f32::NEG_INFINITY {
        return f32::NEG_INFINITY;
    }
    dispatch(Simd::detect(), softmax::Lse(z))
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
    use crate::testing::{golden, golden_sizes, val};

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

    #[test]
    fn removed_logits_keep_their_index_and_add_nothing() {
        let mut z = vec![f32::NEG_INFINITY; 400];
        (z[130], z[131]) = (2.0, 2.0);
        assert_eq!(lse_row(&z), 2.0 + crate::math::log(2.0));
        assert_eq!(lse_row(&[f32::NEG_INFINITY; 200]), f32::NEG_INFINITY);
        assert_eq!(lse_row(&[]), f32::NEG_INFINITY);
    }
}
