//! The arithmetic of `tdpbf16ps` in scalar code.
use super::operand::BLOCK;

/// Replaces a value with exponent field 0 by zero of its sign (denormals are zero).
pub(super) fn daz(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}

/// `fma(a, b, c)` with flush to zero: a result that is tiny after rounding to 24 bits with unbounded exponent becomes
/// zero of its sign.
fn fma(a: f32, b: f32, c: f32) -> f32 {
    const UP: f32 = (1u128 << 64) as f32;
    let r = a.mul_add(b, c);
    let small = r != 0.0 && r.abs() <= f32::MIN_POSITIVE;
    // scaled by 2^64, the sum is rounded as if the exponent were unbounded
    let tiny = small && (a * UP).mul_add(b, c * UP).abs() < f32::MIN_POSITIVE * UP;
    if tiny { 0.0f32.copysign(r) } else { r }
}

/// `a + b` with flush to zero. A sum below 2^-126 is exact, so its magnitude decides.
fn add(a: f32, b: f32) -> f32 {
    daz(a + b)
}

/// `y + (even + odd)` over one block of widened operands.
pub(super) fn block(y: f32, a: &[f32], b: impl Fn(usize) -> f32) -> f32 {
    let (mut even, mut odd) = (0.0, 0.0);
    for k in (0..BLOCK).step_by(2) {
        even = fma(a[k], b(k), even);
        odd = fma(a[k + 1], b(k + 1), odd);
    }
    add(daz(y), add(even, odd))
}
