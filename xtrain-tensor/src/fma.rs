//! The fused multiply-add of docs/numerics.md, with one rounding on every machine.

#[cfg(all(target_arch = "x86", not(target_feature = "sse2")))]
compile_error!("expected a processor with SSE2: the x87 unit rounds f64 to 64 bits");

/// `a b + c`, rounded once.
///
/// For code that may run on a processor without the instruction. There `f32::mul_add` calls `fmaf` of the C library,
/// and that of MinGW rounds more than once.
#[inline]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "fma")]
        fn instruction(a: f32, b: f32, c: f32) -> f32 {
            fma_instruction(a, b, c)
        }
        if is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the instruction.
            return unsafe { instruction(a, b, c) };
        }
    }
    if cfg!(target_arch = "aarch64") { fma_instruction(a, b, c) } else { fma_by_f64(a, b, c) }
}

/// [`fma`], inside code that is compiled for processors with the instruction.
#[inline(always)]
#[allow(clippy::disallowed_methods, reason = "an instruction, not a call of the C library")]
pub(crate) fn fma_instruction(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

/// [`fma`] without the instruction: the product is exact in f64, and the sum is rounded to odd before it is rounded to
/// f32 (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
#[inline(always)]
pub(crate) fn fma_by_f64(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // the exact error of the sum; NaN if the sum is not finite
    let rest = sum - product;
    let error = (product - (sum - rest)) + (c - rest);
    // an inexact sum whose last bit is even becomes its neighbor in the direction of the error
    let step = u64::from(sum.to_bits() & 1 == 0 && error.abs() > 0.0);
    let outward = (error > 0.0) == (sum > 0.0);
    let bits = sum.to_bits();
    f64::from_bits(if outward { bits.wrapping_add(step) } else { bits.wrapping_sub(step) }) as f32
}

/// The fma of scalar code inside a kernel. By default the instruction.
pub(crate) trait ScalarFma {
    /// `a b + c`, rounded once.
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        fma_instruction(a, b, c)
    }
}

/// [`fma`].
pub(crate) struct AnyProcessor;

impl ScalarFma for AnyProcessor {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        fma(a, b, c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ugly;

    /// The first difference between `fma` and `a b + c` rounded once, for products just below and just above half of
    /// the last bit of c.
    fn first_difference(fma: impl Fn(f32, f32, f32) -> f32) -> Option<String> {
        // (1 + x)(1 - x) = 1 - x^2, and (1 + x)(1 - x + x^2) = 1 + x^3
        let below = (15..=23).map(|j| (1.0 + 0.5f32.powi(j), 1.0 - 0.5f32.powi(j), 0u32));
        let above = (10..=11).map(|j| (1.0 + 0.5f32.powi(j), 1.0 - 0.5f32.powi(j) + 0.5f32.powi(2 * j), 1));
        // sums whose last bit in f64 is 1: products of 1 - 2^-28.1, 1 - 2^-28.2, 1 + 2^-28.7 and 1 + 2^-28.1 or so
        let odd = [
            (8_668_630, 16_235_263, 0),
            (9_554_882, 14_729_380, 0),
            (12_039_168, 11_689_968, 1),
            (9_469_298, 14_862_505, 1),
        ]
        .map(|(p, q, up)| (p as f32 * 0.5f32.powi(23), q as f32 * 0.5f32.powi(24), up));
        let factors: Vec<_> = below.chain(above).chain(odd).collect();
        for i in 1..20_000u32 {
            let exponent = i % 300;
            let mantissa = (i.wrapping_mul(2_654_435_761) >> 9).max(1);
            // exponent fields 0 (denormals, whose last bit is that of field 1) to 249
            let field = exponent.saturating_sub(50);
            let half = field.max(1) as i32 - 127 - 24;
            let size = f32::from_bits(field << 23 | mantissa);
            for &(a, b, up) in &factors {
                for (sign, toward) in [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)] {
                    let c = sign * size;
                    let (a, b) = (toward * sign * a * 2f32.powi(half / 2), b * 2f32.powi(half - half / 2));
                    let step = if toward > 0.0 { up } else { up.wrapping_neg() };
                    let want = f32::from_bits(c.to_bits().wrapping_add(step));
                    let got = fma(a, b, c);
                    if got.to_bits() != want.to_bits() {
                        return Some(format!("{a:e} * {b:e} + {c:e}: expected {want:e}, found {got:e}"));
                    }
                }
            }
        }
        None
    }

    #[test]
    fn an_fma_rounds_once_with_and_without_the_instruction() {
        assert_eq!(first_difference(fma), None);
        assert_eq!(first_difference(fma_by_f64), None);
        assert_ne!(first_difference(|a, b, c| a * b + c), None);
        let by_f64 = |a, b, c| (f64::from(a) * f64::from(b) + f64::from(c)) as f32;
        assert_ne!(first_difference(by_f64), None);
        // a sum whose last bit is 1 must stay as it is
        let always_stepped = |a, b, c| {
            let exact = f64::from(a) * f64::from(b);
            let sum = exact + f64::from(c);
            let rest = sum - exact;
            let error = (exact - (sum - rest)) + (f64::from(c) - rest);
            let step = i64::from(error != 0.0) * if (error > 0.0) == (sum > 0.0) { 1 } else { -1 };
            f64::from_bits(sum.to_bits().wrapping_add_signed(step)) as f32
        };
        assert_ne!(first_difference(always_stepped), None);
    }

    /// `a b + c` of finite values in integers, rounded once.
    fn fma_of_integers(a: f32, b: f32, c: f32) -> f32 {
        let parts = |x: f32| {
            let (field, fraction) = ((x.to_bits() >> 23 & 0xff) as i32, i128::from(x.to_bits() & 0x7f_ffff));
            let size = if field == 0 { fraction } else { fraction | 1 << 23 };
            (if x.is_sign_negative() { -size } else { size }, field.max(1) - 150)
        };
        let [a_parts, b_parts, (c_size, c_power)] = [a, b, c].map(parts);
        let (product, power) = (a_parts.0 * b_parts.0, a_parts.1 + b_parts.1);
        if product == 0 {
            return a * b + c;
        }
        // the terms with one power; of a term that is far below the other, only the sign matters
        let (high, low) = if power > c_power {
            ((product, power), (c_size, c_power))
        } else {
            ((c_size, c_power), (product, power))
        };
        let (high, low) = if high.0 == 0 { (low, high) } else { (high, low) };
        let shift = (high.1 - low.1).clamp(0, 76);
        let low_size = if high.1 - low.1 > 76 { low.0.signum() } else { low.0 };
        let (sum, power) = ((high.0 << shift) + low_size, high.1 - shift);
        // round to 24 bits, or to a multiple of 2^-149, ties to even
        let size = sum.unsigned_abs();
        let dropped = ((128 - size.leading_zeros()) as i32 - 24).max(-149 - power).clamp(0, 127);
        let (kept, rest, half) = (size >> dropped, size & ((1 << dropped) - 1), (1u128 << dropped) / 2);
        let up = dropped > 0 && (rest > half || rest == half && kept & 1 == 1);
        let rounded = (kept + u128::from(up)) as f64 * 2f64.powi(power + dropped);
        (if sum < 0 { -rounded } else { rounded }) as f32
    }

    #[test]
    fn an_fma_has_the_bits_of_integers() {
        let [a, b, c] = [1, 2, 3].map(|seed| ugly(400_000, seed));
        let special = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            f32::MAX,
            f32::MIN_POSITIVE,
            f32::from_bits(1),
            f32::from_bits(0x3f80_0001),
        ];
        let pairs = special.iter().flat_map(|&a| special.map(|b| (a, b)));
        let special = pairs.flat_map(|(a, b)| special.map(|c| (a, b, c)));
        for (a, b, c) in a.into_iter().zip(b).zip(c).map(|((a, b), c)| (a, b, c)).chain(special) {
            let want = fma_of_integers(a, b, c);
            for got in [fma(a, b, c), fma_by_f64(a, b, c)] {
                assert_eq!(
                    got.to_bits(),
                    want.to_bits(),
                    "{a:e} * {b:e} + {c:e}: expected {want:e}, found {got:e}"
                );
            }
        }
        for (a, b, c) in [(f32::MAX, 2.0, 0.0), (f32::INFINITY, 1.0, -f32::MAX), (1.0, 1.0, f32::INFINITY)] {
            assert_eq!([fma(a, b, c), fma_by_f64(a, b, c)], [f32::INFINITY; 2], "{a:e} * {b:e} + {c:e}");
        }
        for (a, b, c) in
            [(f32::INFINITY, 0.0, 1.0), (f32::INFINITY, 1.0, f32::NEG_INFINITY), (f32::NAN, 0.0, 0.0)]
        {
            assert!(fma(a, b, c).is_nan() && fma_by_f64(a, b, c).is_nan(), "{a:e} * {b:e} + {c:e}");
        }
    }
}
