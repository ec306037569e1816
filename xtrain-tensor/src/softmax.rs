//! The sum of 32 lanes and the log-sum-exp of a row, in the contract's order.
use crate::math::{exp, log};

/// Lanes of the sum.
const LANES: usize = 32;
/// Logits in a chunk.
const CHUNK: usize = 128;

/// The sum of x_i.
///
/// Order: lane t of 32 takes x_t, x_(t+32), ... rising, from +0; then the lanes are added in pairs at
/// distance 16, 8, 4, 2, 1; then + 0.
pub fn sum32(x: &[f32]) -> f32 {
    sum_lanes(x, |lane, x| lane + x)
}

/// The sum of a_i b_i, each product entering its lane by fma; the order is that of [`sum32`]. Operands
/// are of one length.
pub fn sum32_products(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut lanes = [0.0; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane = a.mul_add(*b, *lane);
        }
    }
    fold(lanes)
}

/// m + log(sum of exp(z_i - m)), m the largest z: the logarithm of the sum of exponentials. -inf for
/// an empty row or one of -inf alone.
///
/// Order: chunks of 128 at 0, 128, ...: m_c the largest, l_c the [`sum32`] of exp(z_i - m_c), +0 where
/// m_c = -inf; then over the chunks the 32 lanes of fma(l_c, exp(m_c - m), .).
pub fn lse_row(z: &[f32]) -> f32 {
    let largest = max(z);
    if largest == f32::NEG_INFINITY {
        return largest;
    }
    let mut lanes = [0.0; LANES];
    for (at, chunk) in z.chunks(CHUNK).enumerate() {
        let m = max(chunk);
        let l = match m {
            f32::NEG_INFINITY => 0.0,
            _ => sum_lanes(chunk, |lane, z| lane + exp(z - m)),
        };
        let lane = &mut lanes[at % LANES];
        *lane = l.mul_add(exp(m - largest), *lane);
    }
    largest + log(fold(lanes))
}

/// The largest value, -inf for none; a NaN is passed over.
pub fn max(x: &[f32]) -> f32 {
    x.iter().fold(f32::NEG_INFINITY, |best, &x| if x > best { x } else { best })
}

fn sum_lanes(x: &[f32], add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    for chunk in x.chunks(LANES) {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = add(*lane, x);
        }
    }
    fold(lanes)
}

fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut distance = LANES / 2;
    while distance > 0 {
        for t in 0..distance {
            lanes[t] += lanes[t + distance];
        }
        distance /= 2;
    }
    lanes[0] + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{golden, golden_sizes, val};

    fn vals(first: usize, n: usize) -> Vec<f32> {
        (first..first + n).map(val).collect()
    }

    #[test]
    fn sum32_has_its_golden_bits() {
        for k in golden_sizes("U/sum32/") {
            let want = golden(&format!("U/sum32/{k}"));
            let x = vals(0, k);
            assert_eq!(format!("{:08x}", sum32(&x).to_bits()), want[0], "sum of {k}");
            assert_eq!(format!("{:08x}", sum32_products(&x, &x).to_bits()), want[2], "squares of {k}");
        }
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
    fn removed_logits_keep_their_place_and_add_nothing() {
        let mut z = vec![f32::NEG_INFINITY; 400];
        (z[130], z[131]) = (2.0, 2.0);
        assert_eq!(lse_row(&z), 2.0 + log(2.0));
        assert_eq!(lse_row(&[f32::NEG_INFINITY; 200]), f32::NEG_INFINITY);
        assert_eq!(lse_row(&[]), f32::NEG_INFINITY);
    }

    #[test]
    fn no_sum_is_minus_zero() {
        assert_eq!(sum32(&[-0.0; 40]).to_bits(), 0);
        assert_eq!(sum32_products(&[-0.0; 40], &[1.0; 40]).to_bits(), 0);
    }
}
