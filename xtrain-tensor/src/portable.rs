//! exp, log, sin and cos in f64 from `+ - * /` alone, after FreeBSD's msun (SunPro's fdlibm): the same bits on every
//! machine, with an error of about one ulp.
#![allow(clippy::excessive_precision, reason = "digits as published")]
// Copyright (C) 1993 by Sun Microsystems, Inc. All rights reserved.
// Developed at SunPro, a Sun Microsystems, Inc. business.
// Permission to use, copy, modify, and distribute this software is freely granted, provided that this
// notice is preserved.

/// e^x with an error below one ulp (0.84 measured). `exp(0) = 1`; +inf above 709.78, +0 below -745.13; NaN for NaN.
pub(crate) fn exp(x: f64) -> f64 {
    const LN_2_HIGH: f64 = 6.93147180369123816490e-01;
    const LN_2_LOW: f64 = 1.90821492927058770002e-10;
    if x.is_nan() {
        return x;
    }
    if x > 7.09782712893383973096e+02 {
        return f64::INFINITY;
    }
    if x < -7.45133219101941108420e+02 {
        return 0.0;
    }
    let size = x.abs();
    if size < 1.0 / (1u64 << 28) as f64 {
        return 1.0 + x;
    }
    // x = k log(2) + (high - low) with |high - low| <= log(2) / 2
    let k = if size <= 0.5 * std::f64::consts::LN_2 {
        0
    } else if size < 1.5 * std::f64::consts::LN_2 {
        if x < 0.0 { -1 } else { 1 }
    } else {
        (std::f64::consts::LOG2_E * x + if x < 0.0 { -0.5 } else { 0.5 }) as i64
    };
    let (high, low) = (x - k as f64 * LN_2_HIGH, k as f64 * LN_2_LOW);
    let r = high - low;
    let t = r * r;
    let series =
        6.61375632143793436117e-05 + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08);
    let c = r - t * (1.66666666666666019037e-01 + t * (-2.77777777770155933842e-03 + t * series));
    if k == 0 {
        return 1.0 - ((r * c) / (c - 2.0) - r);
    }
    let y = 1.0 - ((low - (r * c) / (2.0 - c)) - high);
    let power_of_two = |n: i64| f64::from_bits(((n + 1023) as u64) << 52);
    match k {
        1024 => y * 2.0 * power_of_two(1023),
        -1021.. => y * power_of_two(k),
        _ => y * power_of_two(k + 1000) * power_of_two(-1000),
    }
}

/// log(x) for a positive normal x.
pub(crate) fn log(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0);
    // x = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2)
    let bits = x.to_bits() as i64;
    let k = (bits - 0x3fe6_a09e_0000_0000) >> 52;
    let f = f64::from_bits((bits - (k << 52)) as u64) - 1.0;
    let half_square = 0.5 * f * f;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    let odd = 1.818357216161805012e-01 + w * 1.479819860511658591e-01;
    let odd = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * odd));
    let k = k as f64;
    let low = s * (half_square + (even + odd)) + k * 1.90821492927058770002e-10;
    low - half_square + f + k * 6.93147180369123816490e-01
}

/// The largest angle of [`sin_cos`]: 2^20 quarter turns. Up to here the range reduction has exact products.
pub(crate) const MAX_ANGLE: f64 = 1647099.0;

/// Returns (sin, cos) of an angle of at most [`MAX_ANGLE`].
pub(crate) fn sin_cos(angle: f64) -> (f64, f64) {
    debug_assert!(angle.abs() <= MAX_ANGLE);
    let (quarter, high, low) = reduce(angle);
    let (sin, cos) = (sin_near_0(high, low), cos_near_0(high, low));
    match quarter & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// Range reduction: angle = quarter * pi/2 + (high + low). pi/2 is split into three parts of 33 bits, whose products
/// with a quarter below 2^20 are exact.
fn reduce(angle: f64) -> (i64, f64, f64) {
    const TO_INTEGER: f64 = 6755399441055744.0;
    const PARTS: [(f64, f64); 3] = [
        (1.57079632673412561417e+00, 6.07710050650619224932e-11),
        (6.07710050630396597660e-11, 2.02226624879595063154e-21),
        (2.02226624871116645580e-21, 8.47842766036889956997e-32),
    ];
    let n = (angle * std::f64::consts::FRAC_2_PI + TO_INTEGER) - TO_INTEGER;
    let exponent = |x: f64| (x.to_bits() >> 52 & 0x7ff) as i64;
    let mut rest = angle - n * PARTS[0].0;
    let mut tail = n * PARTS[0].1;
    let mut high = rest - tail;
    // A further part is needed only if the subtraction cancelled more bits than the tail holds.
    for ((head, next), cancelled) in PARTS[1..].iter().zip([16, 49]) {
        if exponent(angle) - exponent(high) <= cancelled {
            break;
        }
        let before = rest;
        let product = n * head;
        rest = before - product;
        tail = n * next - ((before - rest) - product);
        high = rest - tail;
    }
    (n as i64, high, (rest - high) - tail)
}

/// sin(x + low) for |x| <= pi/4.
fn sin_near_0(x: f64, low: f64) -> f64 {
    let z = x * x;
    let w = z * z;
    let r = 8.33333333332248946124e-03
        + z * (-1.98412698298579493134e-04 + z * 2.75573137070700676789e-06)
        + z * w * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10);
    let cube = z * x;
    x - ((z * (0.5 * low - cube * r) - low) - cube * -1.66666666666666324348e-01)
}

/// cos(x + low) for |x| <= pi/4.
fn cos_near_0(x: f64, low: f64) -> f64 {
    let z = x * x;
    let w = z * z;
    let r = z
        * (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * 2.48015872894767294178e-05))
        + w * w
            * (-2.75573143513906633035e-07
                + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11));
    let half = 0.5 * z;
    let one_less = 1.0 - half;
    one_less + (((1.0 - one_less) - half) + (z * r - x * low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dd::Dd;
    use crate::rng::{Purpose, uniform_u64};

    /// A value in [0, 1) from address i.
    fn unit(i: u32) -> f64 {
        (uniform_u64(1, 2, i, Purpose::DataOrder) >> 11) as f64 / (1u64 << 53) as f64
    }

    #[test]
    fn exp_is_within_one_ulp() {
        let ulp = |x: f64| f64::from_bits(x.to_bits() + 1) - x;
        let mut worst = 0f64;
        for i in 0..200_000 {
            let x = (unit(i) - 0.5) * [0.01, 2.0, 40.0, 1400.0][i as usize % 4];
            // about 100 bits
            let (got, want) = (exp(x), Dd::from(x).exp());
            worst = worst.max(((got - want.high) - want.low).abs() / ulp(want.high));
        }
        assert!(worst < 1.0, "{worst} ulp");
    }

    #[test]
    fn exp_has_its_special_values_and_denormals() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!((exp(f64::INFINITY), exp(f64::NEG_INFINITY)), (f64::INFINITY, 0.0));
        assert_eq!((exp(709.79), exp(-745.2)), (f64::INFINITY, 0.0));
        assert!(exp(f64::NAN).is_nan());
        // computed with 80 decimal digits and rounded
        let cases = [
            (-740.0, 0x0000_0000_0000_0055u64),
            (-745.1, 0x0000_0000_0000_0001u64),
            (-710.5, 0x0001_f3c9_d0fb_e022u64),
            (709.7, 0x7fed_75ae_7a50_ee14u64),
            (0.5, 0x3ffa_6129_8e1e_069cu64),
            (-0.35, 0x3fe6_8cce_0967_1f71u64),
            (1.05, 0x4006_dc78_307b_ac49u64),
            (20.0, 0x41bc_eb08_8b68_e804u64),
        ];
        for (x, want) in cases {
            assert_eq!(exp(x).to_bits(), want, "exp({x})");
        }
    }

    #[test]
    fn log_is_within_two_ulp_of_the_platform_libm() {
        for i in 0..100_000 {
            let x = (unit(i) * 200.0 - 100.0).exp2();
            let (got, want) = (log(x), x.ln());
            assert!((got - want).abs() <= 2.0 * f64::EPSILON * want.abs(), "log({x:e}) = {got:e}");
        }
        assert_eq!(log(1.0), 0.0);
    }

    #[test]
    fn sin_cos_is_within_two_ulp_of_the_platform_libm() {
        for i in 0..200_000 {
            let angle = unit(i) * if i % 2 == 0 { MAX_ANGLE } else { 8.0 };
            let (sin, cos) = sin_cos(angle);
            assert!((sin - angle.sin()).abs() <= 2.0 * f64::EPSILON * angle.sin().abs(), "sin({angle})");
            assert!((cos - angle.cos()).abs() <= 2.0 * f64::EPSILON * angle.cos().abs(), "cos({angle})");
        }
    }

    #[test]
    fn sin_cos_has_the_right_signs_in_every_quarter() {
        for quarter in 0..8 {
            let (sin, cos) = sin_cos(f64::from(quarter) * std::f64::consts::FRAC_PI_2 + 0.25);
            assert_eq!(sin > 0.0, matches!(quarter % 4, 0 | 1), "sin in quarter {quarter}");
            assert_eq!(cos > 0.0, matches!(quarter % 4, 0 | 3), "cos in quarter {quarter}");
        }
    }
}
