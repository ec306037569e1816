//! Advantages of unusual groups.
use crate::rl::{
    AdvantageOptions, Advantages, Baseline, RewardAggregation, RlError, ScaleRewards, advantages,
};

fn one_function(rewards: &[f64], options: &AdvantageOptions) -> Advantages {
    let rewards: Vec<_> = rewards.iter().map(|&r| vec![Some(r)]).collect();
    advantages(&rewards, options).unwrap()
}

/// Every combination of options that is valid.
fn all_options(group: usize, weights: &[f64]) -> Vec<AdvantageOptions> {
    let mut all = Vec::new();
    for &scale in ScaleRewards::ALL {
        for &baseline in Baseline::ALL {
            for &aggregation in RewardAggregation::ALL {
                all.push(AdvantageOptions { group, weights: weights.into(), scale, baseline, aggregation });
            }
        }
    }
    all.retain(|options| options.check().is_ok());
    assert_eq!(all.len(), 7);
    all
}

#[test]
fn equal_rewards_give_exactly_zero() {
    // 0.1 + 0.1 + 0.1 is not 3 * 0.1: a mean by division would leave 1e-17
    for options in all_options(3, &[1.0]) {
        let got = one_function(&[0.1, 0.1, 0.1, 0.3, 0.9, 0.7, 0.7, 0.7, 0.7], &options);
        for at in [0, 1, 2, 6, 7, 8] {
            assert_eq!(got.values[at].to_bits(), 0, "{options:?}: advantage {at} is {:e}", got.values[at]);
        }
        assert!(got.values[3] < 0.0 && got.values[4] > 0.0, "{options:?}");
        assert_eq!(got.group_has_spread, [false, true, false]);
        assert_eq!((got.group_std[0], got.group_std[2]), (0.0, 0.0));
    }
    let got = one_function(&[0.1, 0.1, 0.1, 0.3, 0.9, 0.7], &AdvantageOptions::new(3, vec![1.0]));
    assert_eq!(got.frac_reward_zero_std, 0.5);
}

#[test]
fn a_standard_deviation_of_1e_8_counts_as_zero_and_a_larger_one_does_not() {
    let fraction = |rewards: [f64; 3]| {
        let got = one_function(&rewards, &AdvantageOptions::new(3, vec![1.0]));
        (got.group_std[0], got.frac_reward_zero_std)
    };
    assert_eq!(fraction([-1e-8, 0.0, 1e-8]), (1e-8, 1.0));
    let above = 1e-8f64.next_up().next_up();
    let (std, zeros) = fraction([-above, 0.0, above]);
    assert!(std > 1e-8 && zeros == 0.0, "{std:e}: {zeros}");
}

#[test]
fn a_function_without_spread_adds_nothing() {
    let aggregation = RewardAggregation::NormalizeThenSum;
    let with = |rewards: [[f64; 2]; 3], weights: &[f64]| {
        let options = AdvantageOptions { aggregation, ..AdvantageOptions::new(3, weights.into()) };
        let rewards = rewards.map(|r| r[2 - weights.len()..].iter().map(|&r| Some(r)).collect());
        advantages(&rewards, &options).unwrap()
    };
    let rewards = [[0.1, 0.3], [0.1, 0.9], [0.1, 0.5]];
    let (both, one) = (with(rewards, &[1.0, 2.0]), with(rewards, &[2.0]));
    assert_eq!(both.values, one.values);
    assert_eq!((both.functions[0].mean, both.functions[0].std), (Some(0.1), Some(0.0)));
}

#[test]
fn options_that_cannot_be_combined_are_refused_by_name() {
    let good = AdvantageOptions::new(2, vec![1.0]);
    let sums = AdvantageOptions { aggregation: RewardAggregation::NormalizeThenSum, ..good.clone() };
    let refused = [
        (AdvantageOptions { group: 0, ..good.clone() }, "group", "0"),
        (AdvantageOptions { weights: vec![], ..good.clone() }, "weights", "none"),
        (AdvantageOptions { weights: vec![1.0, f64::INFINITY], ..good.clone() }, "weights", "inf"),
        (AdvantageOptions { baseline: Baseline::LeaveOneOut, ..sums.clone() }, "baseline", "leave_one_out"),
        (AdvantageOptions { scale: ScaleRewards::None, ..sums.clone() }, "scale_rewards", "none"),
    ];
    for (options, name, value) in refused {
        let Err(RlError::Option { field, got, .. }) = options.check() else { panic!("{options:?}") };
        assert_eq!((field, &*got), (name, value));
    }
    assert!(good.check().is_ok() && sums.check().is_ok());
}

#[test]
fn one_completion_per_group_has_no_advantage() {
    for options in all_options(1, &[1.0]) {
        let got = one_function(&[0.25, -3.0], &options);
        assert_eq!(got.values, [0.0, 0.0], "{options:?}");
        assert_eq!(got.group_has_spread, [false, false]);
        assert_eq!(got.reward.mean, Some(-1.375));
    }
}

#[test]
fn a_completion_without_a_reward_changes_no_other() {
    for options in all_options(3, &[1.0, 0.5]) {
        let full = [[Some(1.0), Some(0.5)], [Some(0.0), None], [None, None]].map(Vec::from);
        let got = advantages(&full, &options).unwrap();
        let pair = AdvantageOptions { group: 2, ..options.clone() };
        let want = advantages(&full[..2], &pair).unwrap();
        assert_eq!(got.values, [&want.values[..], &[0.0]].concat(), "{options:?}");
        assert_eq!(got.rewards, [Some(1.25), Some(0.0), None]);
        assert_eq!((got.reward, &got.functions), (want.reward, &want.functions));
    }
}

#[test]
fn a_step_without_completions_or_rewards_is_empty() {
    for options in all_options(2, &[1.0]) {
        let empty = advantages(&[], &options).unwrap();
        assert_eq!((empty.values.len(), empty.frac_reward_zero_std, empty.reward.mean), (0, 0.0, None));
        let without = advantages(&[vec![None], vec![None]], &options).unwrap();
        assert_eq!((without.values, without.reward.mean, without.reward.std), (vec![0.0; 2], None, None));
    }
}

#[test]
fn leave_one_out_subtracts_the_mean_of_the_others() {
    let (scale, baseline) = (ScaleRewards::None, Baseline::LeaveOneOut);
    let options = AdvantageOptions { scale, baseline, ..AdvantageOptions::new(3, vec![2.0]) };
    assert_eq!(one_function(&[1.0, 0.0, 0.5], &options).values, [1.5, -1.5, 0.0]);
}

#[test]
fn names_parse_back() {
    for scale in ScaleRewards::ALL {
        assert_eq!(scale.to_string().parse(), Ok(*scale));
    }
    let error = "batches".parse::<ScaleRewards>().unwrap_err().to_string();
    assert_eq!(error, "scale_rewards: expected one of group batch none, found \"batches\"");
}

#[test]
fn rewards_whose_deviation_overflows_are_refused() {
    let rewards: Vec<Vec<Option<f64>>> = [1e200, -1e200, 1.0, 0.0].map(|r| vec![Some(r)]).to_vec();
    for options in all_options(4, &[1.0]) {
        let error = advantages(&rewards, &options).unwrap_err();
        let want = "completion 1: reward -1e200: expected rewards whose standard deviation is finite";
        assert_eq!(error.to_string(), want, "{options:?}");
    }
}
