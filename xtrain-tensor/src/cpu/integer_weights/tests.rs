//! Every instruction set gives the weights of the definition, and samples the same tokens.
use super::*;
use crate::cpu::lanes::dispatch;
use crate::math::exp;
use crate::rng::{Purpose, uniform_u64};
use crate::testing::{simds, val};

/// The definition in docs/numerics.md.
fn defined(w: f32) -> u64 {
    if w > 0.0 { ((f64::from(w) * (1u64 << 44) as f64) as u64).max(1) } else { 0 }
}

/// The first of some values of `exp` whose integer weight is not that of the definition.
fn wrong_weight() -> Option<f32> {
    let sweep = (0..=1f32.to_bits()).step_by(977).map(f32::from_bits);
    let near = (0..=44).flat_map(|power| {
        let one = 0.5f32.powi(power);
        [one.next_down(), one, one.next_up().min(1.0), 1.5 * one.min(0.5), (1.75 * one).min(1.0)]
    });
    sweep.chain(near).find(|&w| integer_weight(w) != defined(w))
}

#[test]
fn a_weight_is_truncated_and_at_least_one() {
    assert_eq!(wrong_weight(), None);
    assert_eq!([0.0, f32::NAN, 1e-30, 1.0].map(integer_weight), [0, 0, 1, 1 << 44]);
}

/// A row, and the words of a mask that was applied to it: a third of the words is 0, a third has one bit.
fn masked_row(len: usize, sigma: f32) -> (Vec<f32>, Vec<u32>) {
    let word = |i: usize| [0, 1 << (i % 32), (i as u32).wrapping_mul(2_654_435_761)][i % 3];
    let words: Vec<u32> = (0..len.div_ceil(32)).map(|i| word(i + len)).collect();
    let allows = |i: usize| words[i / 32] >> (i % 32) & 1 == 1;
    let z = (0..len).map(|i| if allows(i) { sigma * val(i + len) } else { f32::NEG_INFINITY });
    (z.collect(), words)
}

/// Compares weights, sums and tokens of all instruction sets with the definition. Returns the number of tokens.
fn tokens_of_all_instruction_sets() -> Result<usize, String> {
    let mut compared = 0;
    for len in (1..70).chain([127, 128, 129, 1000, 4096 + 77]) {
        for (sigma, masked) in [(8.0, false), (0.01, false), (8.0, true)] {
            let plain = || ((0..len).map(|i| sigma * val(i + len)).collect(), Vec::new());
            let (z, words): (Vec<f32>, Vec<u32>) = if masked { masked_row(len, sigma) } else { plain() };
            let max = z.iter().fold(f32::NEG_INFINITY, |max, &z| if z > max { z } else { max });
            if max == f32::NEG_INFINITY {
                continue;
            }
            let weights: Vec<u64> = z.iter().map(|&z| defined(exp(z - max))).collect();
            let total = weights.iter().sum();
            // random sums, and those around the end of each weight of short rows
            let mut sums: Vec<u64> = (0..40)
                .map(|at| {
                    let u = uniform_u64(len as u64, 1, at, Purpose::Sample);
                    ((u128::from(u) * u128::from(total)) >> 64) as u64
                })
                .collect();
            let ends = weights.iter().take(200).scan(0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            });
            sums.extend(ends.flat_map(|end: u64| [end.saturating_sub(1), end]).filter(|&r| r < total));
            for simd in simds() {
                let failed = |what: &str| Err(format!("{simd}, {len} logits, masked {masked}: {what}"));
                let mut found = vec![7; len];
                let words = masked.then_some(&words[..]);
                let sum = dispatch(simd, IntegerWeights { z: &z, max, words, out: &mut found });
                if found != weights || sum != total {
                    return failed("weights");
                }
                for &r in &sums {
                    let mut sum = 0;
                    let want = weights.iter().position(|weight| {
                        sum += weight;
                        sum > r
                    });
                    if dispatch(simd, FirstAbove { weights: &found, r }) != want {
                        return failed(&format!("token at {r}"));
                    }
                    compared += 1;
                }
                if dispatch(simd, FirstAbove { weights: &found, r: total }).is_some() {
                    return failed("token above all");
                }
            }
        }
    }
    Ok(compared)
}

#[test]
fn all_instruction_sets_sample_the_same_tokens() {
    let compared = tokens_of_all_instruction_sets().unwrap_or_else(|e| panic!("{e}"));
    assert!(compared > 20_000, "{compared}");
}

#[cfg(feature = "faults")]
#[test]
fn faults_of_the_weights_are_found() {
    let with = |fault| faults::with(fault, tokens_of_all_instruction_sets);
    assert!(faults::with(Fault::IntegerWeightRounded, wrong_weight).is_some());
    let weights = [Fault::IntegerWeightRounded, Fault::WordWithOneTokenSkipped].map(with);
    assert!(weights.into_iter().all(|found| found.is_err_and(|e| e.ends_with("weights"))));
    assert!(with(Fault::LastUnitOfBlockNotReached).is_err_and(|e| e.contains("token at")));
}
