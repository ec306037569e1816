//! Double-double arithmetic: an unevaluated sum of two f64, about 104 bits, built from `+ - * /` alone.
use std::ops::{Add, Div, Mul, Neg};

/// The value high + low. |low| is at most half an ulp of high, so `high` is the sum rounded to f64.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dd {
    pub(crate) high: f64,
    pub(crate) low: f64,
}

/// pi / 2 in three parts: a double-double and the remainder.
const PI_2: (Dd, f64) =
    (Dd { high: std::f64::consts::FRAC_PI_2, low: 6.123_233_995_736_766e-17 }, -1.497_384_904_859_169_8e-33);
const LN_2: Dd = Dd { high: std::f64::consts::LN_2, low: 2.319_046_813_846_299_6e-17 };

/// a + b without error, for |a| >= |b|.
fn two_sum_ordered(a: f64, b: f64) -> Dd {
    let high = a + b;
    Dd { high, low: b - (high - a) }
}

/// a + b without error.
fn two_sum(a: f64, b: f64) -> Dd {
    let high = a + b;
    let part = high - a;
    Dd { high, low: (a - (high - part)) + (b - part) }
}

/// a * b without error (Dekker). It uses no fused operation, so no platform has to emulate one.
fn two_product(a: f64, b: f64) -> Dd {
    let split = |x: f64| {
        let c = x * 134_217_729.0;
        let high = c - (c - x);
        (high, x - high)
    };
    let ((ah, al), (bh, bl)) = (split(a), split(b));
    let high = a * b;
    Dd { high, low: ((ah * bh - high) + ah * bl + al * bh) + al * bl }
}

impl From<f64> for Dd {
    fn from(high: f64) -> Dd {
        Dd { high, low: 0.0 }
    }
}

impl Add for Dd {
    type Output = Dd;

    fn add(self, other: Dd) -> Dd {
        let (s, t) = (two_sum(self.high, other.high), two_sum(self.low, other.low));
        let s = two_sum_ordered(s.high, s.low + t.high);
        two_sum_ordered(s.high, s.low + t.low)
    }
}

impl Neg for Dd {
    type Output = Dd;

    fn neg(self) -> Dd {
        Dd { high: -self.high, low: -self.low }
    }
}

impl Mul for Dd {
    type Output = Dd;

    fn mul(self, other: Dd) -> Dd {
        let p = two_product(self.high, other.high);
        two_sum_ordered(p.high, p.low + (self.high * other.low + self.low * other.high))
    }
}

impl Div for Dd {
    type Output = Dd;

    fn div(self, other: Dd) -> Dd {
        let first = self.high / other.high;
        let rest = self + -(other * Dd::from(first));
        let second = rest.high / other.high;
        let rest = rest + -(other * Dd::from(second));
        two_sum_ordered(first, second) + Dd::from(rest.high / other.high)
    }
}

impl Dd {
    /// log(x) for a positive normal x = 2^k m: k log(2) + 2 atanh((m - 1) / (m + 1)).
    pub(crate) fn log(x: f64) -> Dd {
        debug_assert!(x.is_normal() && x > 0.0);
        let bits = x.to_bits() as i64;
        let k = (bits - 0x3fe6_a09e_667f_3bcd) >> 52;
        let m = f64::from_bits((bits - (k << 52)) as u64);
        let s = Dd::from(m - 1.0) / two_sum(m, 1.0);
        let square = s * s;
        // |s| < 0.172: the last term is below 2^-120 of the first.
        let series = (0..24)
            .rev()
            .fold(Dd::from(0.0), |sum, n| sum * square + Dd::from(1.0) / Dd::from(f64::from(2 * n + 1)));
        LN_2 * Dd::from(k as f64) + s * series * Dd::from(2.0)
    }

    /// exp(self). The result must be a normal number.
    pub(crate) fn exp(self) -> Dd {
        let k = (self.high / LN_2.high).round();
        let r = self + -(LN_2 * Dd::from(k));
        // |r| < 0.35: the last term is below 2^-120.
        let one = Dd::from(1.0);
        let series = (1..=27).rev().fold(one, |sum, n| one + sum * r / Dd::from(f64::from(n)));
        let scale = f64::from_bits(((k as i64 + 1023) as u64) << 52); // 2^k
        Dd { high: series.high * scale, low: series.low * scale }
    }

    /// cos(x) for 0 <= x <= pi, to about 100 bits: a series at the distance to the nearest multiple of pi / 2.
    pub(crate) fn cos(x: f64) -> Dd {
        use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};
        debug_assert!((0.0..=PI).contains(&x));
        let quarters = if x <= FRAC_PI_4 {
            0.0
        } else if x <= 3.0 * FRAC_PI_4 {
            1.0
        } else {
            2.0
        };
        // quarters * pi / 2 - x; its first difference is exact
        let near = Dd::from(quarters * FRAC_PI_2 - x);
        let rest = near + Dd { high: quarters * PI_2.0.low, low: quarters * PI_2.1 };
        let square = rest * rest;
        // |rest| < 0.79: the truncation error is below 2^-110 of the first term
        let series = |first: u32| {
            let terms = (first..first + 28).step_by(2).rev();
            terms.fold(Dd::from(1.0), |sum, k| {
                Dd::from(1.0) + -(square * sum / Dd::from(f64::from((k + 1) * (k + 2))))
            })
        };
        match quarters {
            0.0 => series(0),
            1.0 => rest * series(1),
            _ => -series(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_has_the_digits_of_log_10() {
        // log(10) = 2.302585092994045684017991454684364207601101488628772976...
        let got = Dd::log(10.0);
        assert_eq!(got.high, std::f64::consts::LN_10);
        assert!((got.low - -2.170_756_223_382_249_4e-16).abs() < 1e-30, "low {:e}", got.low);
    }

    #[test]
    fn exp_has_the_digits_of_e() {
        // e = 2.718281828459045235360287471352662497757247093699959575...
        let got = Dd::from(1.0).exp();
        assert_eq!(got.high, std::f64::consts::E);
        assert!((got.low - 1.445_646_891_729_250_1e-16).abs() < 1e-30, "low {:e}", got.low);
    }

    #[test]
    fn exp_of_log_is_the_identity_to_a_hundred_bits() {
        for x in [1e-200, 3e-5, 0.7, 1.0, 10_000.0, 1e6, 5e5, 1e200] {
            let back = Dd::log(x).exp();
            assert_eq!(back.high, x);
            assert!(back.low.abs() < x * 1e-28, "exp(log({x:e})) differs by {:e}", back.low);
        }
    }
}
