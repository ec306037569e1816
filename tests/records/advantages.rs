//! Advantages of groups with equal, missing and extreme rewards.
use xtrain::model::rl::{
    AdvantageOptions, Advantages, Baseline, RewardAggregation, ScaleRewards, advantages, weighted_reward,
};

use crate::{Record, list, row};

type Rewards = Vec<Vec<Option<f64>>>;

fn one(rewards: &[Option<f64>]) -> Rewards {
    rewards.iter().map(|&reward| vec![reward]).collect()
}

/// Name, size of a group, weights, rewards.
fn steps() -> Vec<(&'static str, usize, Vec<f64>, Rewards)> {
    let two = |pairs: &[(Option<f64>, Option<f64>)]| pairs.iter().map(|&(a, b)| vec![a, b]).collect();
    vec![
        ("no completion", 3, vec![1.0], one(&[])),
        ("groups of one", 1, vec![1.0], one(&[Some(1.0), Some(-2.0), None])),
        ("a pair", 2, vec![1.0], one(&[Some(1.0), Some(0.0)])),
        (
            "three groups of three: plain, equal, one reward",
            3,
            vec![2.0],
            one(&[Some(1.0), Some(0.25), Some(-0.5), Some(0.5), Some(0.5), Some(0.5), None, Some(3.0), None]),
        ),
        (
            "a group without rewards, and a spread of 1e-9",
            2,
            vec![1.0],
            one(&[None, None, Some(0.3), Some(0.3 + 1e-9)]),
        ),
        (
            "two functions, one weight negative",
            4,
            vec![1.0, -0.5],
            two(&[
                (Some(1.0), Some(0.0)),
                (Some(0.0), Some(1.0)),
                (None, Some(2.0)),
                (Some(1.0), None),
                (Some(0.5), Some(0.5)),
                (Some(0.5), Some(1.5)),
                (None, None),
                (Some(0.5), Some(0.5)),
            ]),
        ),
        (
            "two functions, weight 0",
            2,
            vec![0.0, 1.0],
            two(&[
                (Some(1.0), Some(0.0)),
                (Some(0.0), Some(0.0)),
                (Some(1.0), Some(1.0)),
                (Some(0.0), Some(-1.0)),
            ]),
        ),
    ]
}

fn options(group: usize, weights: &[f64]) -> Vec<AdvantageOptions> {
    let of = |scale, baseline, aggregation| AdvantageOptions {
        scale,
        baseline,
        aggregation,
        ..AdvantageOptions::new(group, weights.to_vec())
    };
    let mut all = Vec::new();
    for scale in [ScaleRewards::Group, ScaleRewards::Batch, ScaleRewards::None] {
        for baseline in [Baseline::GroupMean, Baseline::LeaveOneOut] {
            all.push(of(scale, baseline, RewardAggregation::SumThenNormalize));
        }
    }
    all.push(of(ScaleRewards::Group, Baseline::GroupMean, RewardAggregation::NormalizeThenSum));
    all
}

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    for (name, group, weights, rewards) in steps() {
        out.section(format!("{name}: {}", list(&rewards)));
        for options in options(group, &weights) {
            let AdvantageOptions { scale, baseline, aggregation, .. } = &options;
            let found = advantages(&rewards, &options).unwrap();
            compare(&rewards, &options, &found);
            let Advantages { values, frac_reward_zero_std, .. } = &found;
            let text = format!("{} | {frac_reward_zero_std:?}", list(values));
            out.line(row(format!("{scale} {baseline} {aggregation}"), 36, text));
        }
        let found = advantages(&rewards, &AdvantageOptions::new(group, weights)).unwrap();
        let Advantages { rewards, group_std, group_has_spread, reward, functions, .. } = found;
        out.line(row("rewards", 36, list(rewards)));
        out.line(row("deviation, spread of each group", 36, list(group_std.iter().zip(group_has_spread))));
        let all = functions.iter().chain([&reward]).map(|of| (of.mean, of.std));
        out.line(row("mean, deviation: functions, sum", 36, list(all)));
    }
    refusals(&mut out);
    out
}

/// The definition, for the mean of the group and the deviation of the group or none.
fn compare(rewards: &Rewards, options: &AdvantageOptions, found: &Advantages) {
    let AdvantageOptions { group, weights, scale, baseline, aggregation } = options;
    let plain = *baseline == Baseline::GroupMean && *aggregation == RewardAggregation::SumThenNormalize;
    if !plain || *scale == ScaleRewards::Batch {
        return;
    }
    for (at, completions) in rewards.chunks(*group).enumerate() {
        let totals: Vec<Option<f64>> = completions.iter().map(|r| weighted_reward(r, weights)).collect();
        let present: Vec<f64> = totals.iter().flatten().copied().collect();
        let mean = present.iter().sum::<f64>() / present.len() as f64;
        let squares: f64 = present.iter().map(|r| (r - mean) * (r - mean)).sum();
        let std = (squares / (present.len() as f64 - 1.0)).sqrt();
        let divisor = if *scale == ScaleRewards::None { 1.0 } else { std + 1e-4 };
        for (i, total) in totals.iter().enumerate() {
            let equal = present.iter().all(|r| *r == present[0]);
            let want = total.filter(|_| !equal).map_or(0.0, |r| (r - mean) / divisor);
            let got = found.values[at * group + i];
            assert!(
                (got - want).abs() <= 1e-12 * want.abs(),
                "{rewards:?}, {options:?}: {got}, expected {want}"
            );
        }
    }
}

fn refusals(out: &mut Record) {
    out.section("refusals");
    let of = |group, weights: &[f64]| AdvantageOptions::new(group, weights.to_vec());
    let separate = |baseline, scale| AdvantageOptions {
        baseline,
        scale,
        aggregation: RewardAggregation::NormalizeThenSum,
        ..of(2, &[1.0])
    };
    let pair = one(&[Some(1.0), Some(2.0)]);
    for (rewards, options) in [
        (&pair, of(0, &[1.0])),
        (&pair, of(2, &[])),
        (&pair, of(2, &[f64::NAN])),
        (&pair, of(3, &[1.0])),
        (&pair, of(2, &[1.0, 1.0])),
        (&pair, separate(Baseline::LeaveOneOut, ScaleRewards::Group)),
        (&pair, separate(Baseline::GroupMean, ScaleRewards::None)),
        (&one(&[Some(1.0), Some(f64::INFINITY)]), of(2, &[1.0])),
        (&one(&[Some(1e308), Some(-1e308)]), of(2, &[10.0])),
        (&one(&[Some(1e200), Some(-1e200)]), of(2, &[1.0])),
    ] {
        out.line(advantages(rewards, &options).unwrap_err().to_string());
    }
}
