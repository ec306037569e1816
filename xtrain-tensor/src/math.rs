//! exp and log of f32 by our own polynomials: about 1 ulp, monotone, the same bits on every machine.
#![allow(clippy::excessive_precision, reason = "the digits of the contract")]

/// e^x, 1.013 ulp at most: +0 below -87, +inf above 88.72283, never denormal, exp(0) = 1.
#[inline]
pub fn exp(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    if x < -87.0 {
        return 0.0;
    }
    if x > 88.72283 {
        return f32::INFINITY;
    }
    // x = n log 2 + r: adding 1.5 * 2^23 leaves the integer n in the low bits of t.
    let t = x.mul_add(std::f32::consts::LOG2_E, 12582912.0);
    let n = t - 12582912.0;
    let r = n.mul_add(-0.693145751953125, x);
    let r = n.mul_add(-1.428606765330187e-06, r);
    let mut p = 1.9875691500e-4f32;
    for c in [1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1] {
        p = p.mul_add(r, c);
    }
    let p = p.mul_add(r * r, r) + 1.0;
    f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23))
}

/// The natural logarithm, 0.83 ulp at most: log(0) = -inf, NaN below 0, denormals taken as they are.
#[inline]
pub fn log(x: f32) -> f32 {
    if x == 0.0 {
        return f32::NEG_INFINITY;
    }
    if x.is_nan() || x < 0.0 {
        return f32::NAN;
    }
    if x == f32::INFINITY {
        return x;
    }
    let (x, k) = if x < f32::MIN_POSITIVE { (x * 8388608.0, -23.0) } else { (x, 0.0) };
    // x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2)
    let e = (x.to_bits().wrapping_sub(0x3f35_04f3) as i32) >> 23;
    let f = f32::from_bits(x.to_bits().wrapping_sub((e as u32) << 23)) - 1.0;
    let n = e as f32 + k;
    let s = f * f;
    let mut p = 7.0376836292e-2f32;
    for c in [
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    ] {
        p = p.mul_add(f, c);
    }
    let p = (p * f) * s;
    let p = n.mul_add(-2.12194440e-4, p);
    let p = s.mul_add(-0.5, p);
    n.mul_add(0.693359375, f + p)
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::testing::{golden, val};

    fn sha256(values: &[f32]) -> String {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn exp_and_log_have_their_golden_bits() {
        let exps: Vec<f32> = (0..4096).map(|i| exp(40.0 * val(i))).collect();
        let logs: Vec<f32> = exps.iter().map(|&x| log(x)).collect();
        assert_eq!(sha256(&exps), golden("U/exp")[0]);
        assert_eq!(sha256(&logs), golden("U/log")[0]);
    }

    #[test]
    fn exp_ends_where_its_definition_says() {
        assert_eq!(exp(0.0).to_bits(), 1f32.to_bits());
        assert_eq!(exp(-0.0).to_bits(), 1f32.to_bits());
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp((-87f32).next_down()).to_bits(), 0);
        assert!(exp(-87.0) >= f32::MIN_POSITIVE);
        assert!(exp(88.72283).is_finite());
        assert_eq!(exp(88.72283f32.next_up()), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn log_ends_where_its_definition_says() {
        assert_eq!(log(1.0).to_bits(), 0);
        assert_eq!((log(0.0), log(-0.0)), (f32::NEG_INFINITY, f32::NEG_INFINITY));
        assert!(log(-1.0).is_nan() && log(f32::NAN).is_nan());
        assert_eq!(log(f32::INFINITY), f32::INFINITY);
        assert!((log(f32::from_bits(1)) - -103.27893).abs() < 1e-4);
    }

    #[test]
    fn both_are_within_their_ulp_of_f64() {
        let ulp = |y: f64| f64::from((y as f32).abs().next_up()) - f64::from((y as f32).abs());
        for i in 0..100_000 {
            let x = 43.0 * val(i);
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got - want).abs() <= 1.05 * ulp(want), "exp({x:e}) = {got:e}");
            let x = exp(x);
            let (got, want) = (f64::from(log(x)), f64::from(x).ln());
            assert!((got - want).abs() <= 0.9 * ulp(want), "log({x:e}) = {got:e}");
        }
    }
}
