//! `exp` and `log` of docs/numerics.md, the cosine of the learning-rate schedules, and the exponential
//! and logarithm of policy losses. All give the same bits on every machine.

#![allow(clippy::excessive_precision, reason = "constants are written as the contract writes them")]
use crate::dd::Dd;
use crate::fma::{AnyProcessor, ScalarFma};
use crate::portable;

pub use crate::fma::fma;

/// `exp` of a smaller value is +0.
pub(crate) const EXP_LOW: f32 = -87.0;
/// `exp` of a larger value is +inf.
pub(crate) const EXP_HIGH: f32 = 88.72283;
pub(crate) const EXP_LOG2E: f32 = f32::from_bits(0x3fb8_aa3b);
/// 1.5 * 2^23. Adding it rounds a value to an integer, which ends up in the low bits of the sum; subtracting it again
/// gives the integer as f32.
pub(crate) const EXP_SHIFT: f32 = 12_582_912.0;
/// ln 2 as a sum of two parts. The first part times an exponent is exact.
pub(crate) const EXP_LN2: [f32; 2] = [0.693_145_751_953_125, 1.428_606_765_330_187e-6];
/// Coefficients of the polynomial (exp(r) - 1 - r) / r^2, highest power first.
pub(crate) const EXP_POLY: [f32; 6] =
    [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1];

const LOG_POLY: [f32; 9] = [
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
];

/// e^x with an error of at most 1.013 ulp. Monotone and never denormal.
///
/// `exp(0) = 1`; +0 below -87; +inf above 88.72283; NaN for NaN.
pub fn exp(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    if x < EXP_LOW {
        return 0.0;
    }
    if x > EXP_HIGH {
        return f32::INFINITY;
    }
    let t = fma(x, EXP_LOG2E, EXP_SHIFT);
    let n = t - EXP_SHIFT;
    let r = fma(n, -EXP_LN2[0], x);
    let r = fma(n, -EXP_LN2[1], r);
    let p = EXP_POLY[1..].iter().fold(EXP_POLY[0], |p, &c| fma(p, r, c));
    let p = fma(p, r * r, r) + 1.0;
    f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23))
}

/// The natural logarithm with an error of at most 0.83 ulp. Monotone.
///
/// -inf at zero and NaN below zero.
pub fn log(x: f32) -> f32 {
    log_by::<AnyProcessor>(x)
}

/// [`log`] by the fma of `F`. The code has no branches, so the compiler can vectorize a loop over it. It has no closures:
/// those would be compiled without the instructions of the function that calls it.
#[inline(always)]
pub(crate) fn log_by<F: ScalarFma>(x: f32) -> f32 {
    let (y, k) = if x < f32::MIN_POSITIVE { (x * 8_388_608.0, -23.0) } else { (x, 0.0) };
    let e = (y.to_bits().wrapping_sub(0x3f35_04f3) as i32) >> 23;
    let f = f32::from_bits(y.to_bits().wrapping_sub((e as u32) << 23)) - 1.0;
    let n = e as f32 + k;
    let s = f * f;
    let mut p = LOG_POLY[0];
    for &c in &LOG_POLY[1..] {
        p = F::fma(p, f, c);
    }
    let p = (p * f) * s;
    let p = F::fma(n, -2.12194440e-4, p);
    let p = F::fma(s, -0.5, p);
    let log = F::fma(n, 0.693_359_375, f + p);
    let log = if x == f32::INFINITY { x } else { log };
    let log = if x >= 0.0 { log } else { f32::NAN };
    if x == 0.0 { f32::NEG_INFINITY } else { log }
}

/// e^x in f64 with an error below one ulp.
///
/// `exp_f64(0) = 1`; +0 below -745.13; +inf above 709.78; NaN for NaN.
pub fn exp_f64(x: f64) -> f64 {
    portable::exp(x)
}

/// The natural logarithm in f64 with an error of about one ulp. -inf at zero and below 2^-1022; +inf for +inf; NaN
/// for negative numbers and NaN.
pub fn log_f64(x: f64) -> f64 {
    if x.is_normal() && x > 0.0 {
        portable::log(x)
    } else if x < 0.0 || x.is_nan() {
        f64::NAN
    } else if x == f64::INFINITY {
        x
    } else {
        f64::NEG_INFINITY
    }
}

/// `base^exponent` in f64 with an error below one ulp, for a normal base above 0.
pub fn pow_f64(base: f64, exponent: f64) -> f64 {
    (Dd::log(base) * Dd::from(exponent)).exp().high
}

/// Returns the f64 nearest to cos(x), for 0 <= x <= pi.
pub fn cos(x: f64) -> f64 {
    Dd::cos(x).high
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_f64_logarithm_has_its_special_values() {
        assert_eq!((log_f64(1.0), log_f64(f64::INFINITY)), (0.0, f64::INFINITY));
        assert_eq!((log_f64(0.0), log_f64(5e-324)), (f64::NEG_INFINITY, f64::NEG_INFINITY));
        assert!(log_f64(-1.0).is_nan() && log_f64(f64::NAN).is_nan() && log_f64(f64::NEG_INFINITY).is_nan());
        assert_eq!(log_f64(10.0), std::f64::consts::LN_10);
    }

    #[test]
    fn powers_are_exact_where_they_are_f64() {
        for (base, exponent, want) in [(1e6, 1.0, 1e6), (1e6, 0.5, 1e3), (7.5, 0.0, 1.0), (3.0, 2.0, 9.0)] {
            assert_eq!(pow_f64(base, exponent), want, "{base}^{exponent}");
        }
    }

    #[test]
    fn the_cosine_is_the_nearest_f64() {
        // Computed by mpmath 1.3 with 200 bits. The cases are the end points, the neighbors of pi / 2, and those of
        // 60,000 random angles whose cosine is closest to the midpoint of two f64. glibc rounds 9 of the last 14
        // wrongly (94 of all 60,000).
        let cases: [[u64; 2]; 22] = [
            [0x0000000000000000, 0x3ff0000000000000],
            [0x3fe921fb54442d18, 0x3fe6a09e667f3bcd],
            [0x3ff921fb54442d17, 0x3cb469898cc51702],
            [0x3ff921fb54442d18, 0x3c91a62633145c07],
            [0x3ff921fb54442d19, 0xbca72cece675d1fd],
            [0x3ff921fb54442d1c, 0xbccdcb3b399d747f],
            [0x4002d97c7f3321d2, 0xbfe6a09e667f3bcc],
            [0x400921fb54442d18, 0xbff0000000000000],
            [0x3ff5dfcad184ba66, 0x3fc9e37a78940a99],
            [0x4009135814683a5c, 0xbfefffca6f49558a],
            [0x3fe66b7f5c35b0db, 0x3fe8764d557602b8],
            [0x3ffd6ccb31328ab2, 0xbfd0f6b81efb0d0a],
            [0x3fea994ba10f19d3, 0x3fe5913f1a9680de],
            [0x3fe31d37bc61a74d, 0x3fea75898161041d],
            [0x40027bd79d601682, 0xbfe591ca8d8c968e],
            [0x3fe222e2c5307c08, 0x3feaff25614f3055],
            [0x3fdcd7bff3393299, 0x3fecce1462111b4b],
            [0x4006766d842075e1, 0xbfee3bece1296953],
            [0x3ff760bc24ae8a7f, 0x3fbc058be4c1ef3f],
            [0x4000b3a90125028d, 0xbfdfa12c1bab0b0b],
            [0x3ffee9faaf7c68b5, 0xbfd6a002fb661fa5],
            [0x3ffa2f4abc964a05, 0xbfb0d1dbe9540a77],
        ];
        for [x, want] in cases {
            assert_eq!(cos(f64::from_bits(x)).to_bits(), want, "{}", f64::from_bits(x));
        }
    }

    /// FNV-1a hash over the bits of f at every 6971st bit pattern, NaN excluded.
    fn hash(f: fn(f32) -> f32) -> u64 {
        let patterns = (0..1u64 << 32).step_by(6_971).map(|u| f32::from_bits(u as u32));
        patterns
            .filter(|x| !x.is_nan())
            .map(f)
            .filter(|y| !y.is_nan())
            .fold(14_695_981_039_346_656_037, |h, y| {
                (h ^ u64::from(y.to_bits())).wrapping_mul(1_099_511_628_211)
            })
    }

    #[test]
    fn special_values_and_boundaries() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(EXP_LOW) >= f32::MIN_POSITIVE && exp(EXP_HIGH).is_finite());
        assert_eq!(log(1.0).to_bits(), 0);
        assert_eq!(log(-0.0), f32::NEG_INFINITY);
        assert!(log(-1.0).is_nan() && log(f32::NAN).is_nan());
        assert!((log(f32::from_bits(1)) + 103.278_93).abs() < 1e-4);
    }

    #[test]
    fn exp_and_log_have_their_golden_bits_over_a_sweep_of_all_patterns() {
        assert_eq!(hash(exp), 9_793_243_355_268_812_541);
        assert_eq!(hash(log), 17_099_088_343_515_042_637);
    }
}
