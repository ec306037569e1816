//! `exp` and `log` of the contract (docs/numerics.md, section 6): IEEE operations only, so the same
//! bits on every machine.
#![allow(clippy::excessive_precision, reason = "the constants as docs/numerics.md writes them")]

/// `e^x` to about 1 ulp: +0 below -87, +inf above 88.72283, never denormal, monotone.
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
    let t = x.mul_add(f32::from_bits(0x3fb8_aa3b), 12_582_912.0);
    let n = t - 12_582_912.0;
    let r = n.mul_add(-0.693_145_751_953_125, x);
    let r = n.mul_add(-1.428_606_765_330_187e-6, r);
    let mut p = 1.987_569_150_0e-4f32;
    for c in EXP {
        p = p.mul_add(r, c);
    }
    let p = p.mul_add(r * r, r) + 1.0;
    f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23))
}

/// The natural logarithm to about 1 ulp, monotone; -inf at 0, NaN below.
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
    let (z, k) = if x < f32::MIN_POSITIVE { (x * 8_388_608.0, -23.0f32) } else { (x, 0.0) };
    let e = z.to_bits().wrapping_sub(0x3f35_04f3) as i32 >> 23;
    let f = f32::from_bits(z.to_bits().wrapping_sub((e as u32) << 23)) - 1.0;
    let (n, s) = (e as f32 + k, f * f);
    let mut p = 7.037_683_629_2e-2f32;
    for c in LOG {
        p = p.mul_add(f, c);
    }
    let p = (p * f) * s;
    let p = n.mul_add(-2.121_944_40e-4, p);
    let p = s.mul_add(-0.5, p);
    n.mul_add(0.693_359_375, f + p)
}

pub(crate) const EXP: [f32; 5] =
    [1.398_199_950_7e-3, 8.333_451_907_3e-3, 4.166_579_589_4e-2, 1.666_666_545_9e-1, 5.000_000_120_1e-1];

const LOG: [f32; 8] = [
    -1.151_461_031_0e-1,
    1.167_699_874_0e-1,
    -1.242_014_084_6e-1,
    1.424_932_278_7e-1,
    -1.666_805_766_5e-1,
    2.000_071_476_5e-1,
    -2.499_999_399_3e-1,
    3.333_333_117_4e-1,
];
