//! Which tokens can be sampled, and that addresses are independent.
use super::*;

/// The smallest `u` of its range must give each token with a weight. No `u` gives a token without one. Returns the
/// number of failures.
fn unreached(row: &[f32], options: SampleOptions) -> usize {
    let mut sampler = sampler(options);
    let distribution = sampler.distribution(row, &[]).expect("a distribution");
    let (mut before, mut failures) = (0u128, 0);
    for (token, &weight) in distribution.weights().iter().enumerate() {
        if weight > 0 {
            let smallest = (before << 64).div_ceil(u128::from(distribution.total()));
            failures += usize::from(distribution.token(smallest as u64) as usize != token);
            before += u128::from(weight);
        }
    }
    let removed = |u| distribution.weights()[distribution.token(u) as usize] == 0;
    failures + usize::from(removed(0)) + usize::from(removed(u64::MAX))
}

#[test]
fn every_token_with_a_weight_can_be_sampled_and_no_other() {
    let default = SampleOptions::default();
    for options in [
        default,
        SampleOptions { temperature: 0.7, ..default },
        SampleOptions { top_k: Some(77), ..default },
        SampleOptions { top_p: Some(0.9), min_p: Some(1e-3), ..default },
    ] {
        for (vocab, sigma) in [(37, 1.0), (5000, 12.0), (4097, 0.01)] {
            assert_eq!(unreached(&wide_row(vocab, sigma), options), 0, "{options:?}, {vocab} logits");
        }
    }
}

#[cfg(feature = "faults")]
#[test]
fn a_running_sum_in_f32_is_caught() {
    let count = || unreached(&wide_row(5000, 12.0), SampleOptions::default());
    let failures = xtrain_tensor::faults::with(xtrain_tensor::faults::Fault::SamplerF32RunningSum, count);
    assert!(failures > 1000, "{failures} tokens were missed");
}

/// The tokens of 2,000 positions, sampled from a uniform row of 200 logits.
fn tokens(seed: u64, id: u64) -> Vec<f64> {
    let row = [0.0; 200];
    let mut sampler = sampler(SampleOptions::default());
    let mut token = |position| {
        let choice = sampler.pick(&row, &[], address(seed, id, position)).expect("a choice");
        f64::from(choice.token)
    };
    (0..2000).map(&mut token).collect()
}

/// The correlation of two lists, in standard deviations of the correlation of independent lists.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len() as f64;
    let mean = |x: &[f64]| x.iter().sum::<f64>() / n;
    let (ma, mb) = (mean(a), mean(b));
    let product = |a: &[f64], ma: f64, b: &[f64], mb: f64| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - ma) * (b - mb)).sum()
    };
    product(a, ma, b, mb) / (product(a, ma, a, ma) * product(b, mb, b, mb)).sqrt() * n.sqrt()
}

/// Neighbouring seeds, ids and positions must give uncorrelated tokens. Returns the pairs that are correlated.
fn correlated() -> Vec<String> {
    let mut found = Vec::new();
    for (seed, id) in [(0, 0), (1, 7), (41, 3), (u64::MAX - 1, 1 << 40)] {
        let here = tokens(seed, id);
        for (what, other) in [("seed", tokens(seed + 1, id)), ("id", tokens(seed, id + 1))] {
            let r = correlation(&here, &other);
            if r.abs() > 4.0 {
                found.push(format!("next {what} after seed {seed}, id {id}: {r:.1} sigma"));
            }
        }
        let r = correlation(&here[1..], &here[..here.len() - 1]);
        if r.abs() > 4.0 {
            found.push(format!("next position at seed {seed}, id {id}: {r:.1} sigma"));
        }
    }
    found
}

#[test]
fn neighbouring_seeds_ids_and_positions_are_uncorrelated() {
    assert_eq!(correlated(), Vec::<String>::new());
}

#[cfg(feature = "faults")]
#[test]
fn a_random_state_shared_by_sequences_is_caught() {
    let found = xtrain_tensor::faults::with(xtrain_tensor::faults::Fault::RngIgnoresSequenceId, correlated);
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found.iter().all(|line| line.starts_with("next id")), "{found:?}");
}
