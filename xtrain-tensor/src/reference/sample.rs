//! Token sampling as specified in docs/numerics.md, section 7.
use super::reduce::lse;
use crate::math::exp;
use crate::operands::{SampleFailure, SampleRow, Sampled};
use crate::rng::{Purpose, uniform_u64};

/// Samples the token of a row.
///
/// # Errors
/// The reason why no token can be sampled.
pub(crate) fn sample(x: &[f32], row: &SampleRow<'_>) -> Result<Sampled, SampleFailure> {
    if x.iter().any(|x| x.is_nan() || *x == f32::INFINITY) {
        return Err(SampleFailure::NotFinite);
    }
    if largest(x) == f32::NEG_INFINITY {
        return Err(SampleFailure::NothingLeft);
    }
    let mut z = x.to_vec();
    for &id in row.seen {
        let x = x[id as usize];
        z[id as usize] = if x > 0.0 { x / row.penalty } else { x * row.penalty };
    }
    let greedy = row.temperature == 0.0;
    if !greedy {
        z.iter_mut().for_each(|z| *z /= row.temperature);
    }
    let max = largest(&z);
    if max.is_infinite() {
        return Err(SampleFailure::Overflow);
    }
    let (token, processed) = if greedy {
        (z.iter().position(|&z| z == max).expect("the maximum is one of the logits"), 0.0)
    } else {
        let mut weights = integer_weights(&z, max);
        for i in removed(&z, max, &weights, row.top_k as usize, row.top_p, row.min_p) {
            (z[i], weights[i]) = (f32::NEG_INFINITY, 0);
        }
        let token = draw(&weights, row);
        (token, z[token] - lse(&z))
    };
    Ok(Sampled { token: token as u32, log_prob: x[token] - lse(x), processed })
}

pub(super) fn largest(z: &[f32]) -> f32 {
    z.iter().fold(f32::NEG_INFINITY, |m, &z| if z > m { z } else { m })
}

/// `W_i`: the integer weight of `exp(z_i - max)`.
pub(super) fn integer_weights(z: &[f32], max: f32) -> Vec<u64> {
    let integer = |w: f32| if w > 0.0 { ((f64::from(w) * 2f64.powi(44)) as u64).max(1) } else { 0 };
    z.iter().map(|&z| integer(exp(z - max))).collect()
}

/// The tokens that top-k, top-p and min-p remove, in any order. `top_k = 0`, `top_p = 1` and `min_p = 0` are off. No z
/// is a NaN, and `max` is finite.
pub(super) fn removed(
    z: &[f32],
    max: f32,
    weights: &[u64],
    top_k: usize,
    top_p: f32,
    min_p: f32,
) -> Vec<usize> {
    // ascending; among equal logits the highest index first
    let mut order: Vec<usize> = (0..z.len()).collect();
    order.sort_by(|&a, &b| z[a].partial_cmp(&z[b]).expect("no NaN").then(b.cmp(&a)));
    let mut removed = match top_k {
        0 => 0,
        k => z.len().saturating_sub(k),
    };
    if top_p < 1.0 {
        let total: u64 = order[removed..].iter().map(|&i| weights[i]).sum();
        let budget = ((1.0 - f64::from(top_p)) * total as f64) as u64;
        let mut spent = 0;
        for &i in &order[removed..order.len() - 1] {
            spent += weights[i];
            if spent > budget {
                break;
            }
            removed += 1;
        }
    }
    let below_min_p = (0..z.len()).filter(|&i| exp(z[i] - max) < min_p);
    order[..removed].iter().copied().chain(below_min_p).collect()
}

/// The lowest i with `W_0 + ... + W_i > r`, where r is the high 64 bits of u S.
fn draw(weights: &[u64], row: &SampleRow<'_>) -> usize {
    let u = uniform_u64(row.seed, row.id, row.position, Purpose::Sample);
    let total: u64 = weights.iter().sum();
    let r = ((u128::from(u) * u128::from(total)) >> 64) as u64;
    let mut sum = 0;
    let exceeds = |&w: &u64| {
        sum += w;
        sum > r
    };
    weights.iter().position(exceeds).expect("r is below the sum")
}
