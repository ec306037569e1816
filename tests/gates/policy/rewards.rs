//! Advantages against TRL's, and against its formulas.
use xtrain::model::rl::{AdvantageOptions, Baseline, RewardAggregation, RlError, ScaleRewards, advantages};

use super::cases::{f64_of, list, tensor_rows};
use super::{Checked, F64, compare, differ};
use crate::fixtures::json;

/// Advantages by the formulas of TRL, with the factor n / (n - 1) of a variance in f64, or rounded to f32.
///
/// TRL divides two integer tensors, which gives f32 also in its f64 runs: its standard deviations are off by up to
/// 2e-8. So ours are compared with these in f64, and TRL's with these in f32.
struct Formulas {
    rounded: bool,
}

impl Formulas {
    fn std(&self, values: &[f64]) -> f64 {
        let n = values.len() as f64;
        if n < 2.0 {
            return 0.0;
        }
        let factor = if self.rounded { f64::from((n / (n - 1.0)) as f32) } else { n / (n - 1.0) };
        let mean = mean(values);
        (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n * factor).sqrt()
    }

    /// The values minus their mean, divided by their standard deviation + 1e-4.
    fn normalized(&self, values: &[Option<f64>]) -> Vec<Option<f64>> {
        let all: Vec<f64> = values.iter().copied().flatten().collect();
        let (mean, std) = (mean(&all), self.std(&all));
        values.iter().map(|x| x.map(|x| (x - mean) / (std + 1e-4))).collect()
    }

    fn advantages(&self, rewards: &[Vec<Option<f64>>], options: &AdvantageOptions) -> Vec<f64> {
        let weighted = |row: &Vec<Option<f64>>| {
            let terms = row.iter().zip(&options.weights).filter_map(|(r, w)| r.map(|r| r * w));
            row.iter().any(Option::is_some).then(|| terms.sum::<f64>())
        };
        let groups = rewards.chunks(options.group);
        let values: Vec<Option<f64>> = if options.aggregation == RewardAggregation::NormalizeThenSum {
            let in_group = |group: &[Vec<Option<f64>>]| -> Vec<Option<f64>> {
                let column = |f: usize| self.normalized(&group.iter().map(|r| r[f]).collect::<Vec<_>>());
                let columns: Vec<_> = (0..options.weights.len()).map(column).collect();
                (0..group.len()).map(|b| weighted(&columns.iter().map(|c| c[b]).collect())).collect()
            };
            self.normalized(&groups.flat_map(in_group).collect::<Vec<_>>())
        } else {
            let rewards: Vec<Option<f64>> = rewards.iter().map(weighted).collect();
            let step = self.std(&rewards.iter().copied().flatten().collect::<Vec<_>>());
            let in_group = |group: &[Option<f64>]| -> Vec<Option<f64>> {
                let all: Vec<f64> = group.iter().copied().flatten().collect();
                let (mean, scale) = match options.scale {
                    ScaleRewards::Group => (mean(&all), self.std(&all) + 1e-4),
                    ScaleRewards::Batch => (mean(&all), step + 1e-4),
                    ScaleRewards::None => (mean(&all), 1.0),
                };
                group.iter().map(|r| r.map(|r| (r - mean) / scale)).collect()
            };
            rewards.chunks(options.group).flat_map(in_group).collect()
        };
        values.into_iter().map(|a| a.unwrap_or(0.0)).collect()
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The advantages of both files.
pub(super) fn check_advantages() -> Checked {
    let mut compared = 0;
    let mut list_of = |what: &str, got: &[f64], want: &[f64]| -> Result<(), String> {
        if got.len() != want.len() {
            return differ(format!("{what}: {} values, expected {}", got.len(), want.len()));
        }
        for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
            compared += compare(&format!("{what}, {at}"), got, want, F64)?;
        }
        Ok(())
    };
    let error = |e: RlError| format!("gate policy, seed of the fixtures: {e}");
    let (exact, rounded) = (Formulas { rounded: false }, Formulas { rounded: true });

    let all = json("grpo/trl_1.16.json");
    let rewards: Vec<Vec<Option<f64>>> = serde_json::from_value(all["rewards_per_func"].clone()).unwrap();
    let modes = all["advantage_modes"].as_object().unwrap();
    assert_eq!(modes.len(), 4);
    for (mode, want) in modes {
        let mut options = AdvantageOptions::new(4, list(&all["reward_weights"]));
        match mode.as_str() {
            "normalize_then_sum" => options.aggregation = RewardAggregation::NormalizeThenSum,
            mode => options.scale = mode.parse().unwrap(),
        }
        let got = advantages(&rewards, &options).map_err(error)?;
        list_of(mode, &got.values, &exact.advantages(&rewards, &options))?;
        list_of(
            &format!("TRL, {mode}"),
            &rounded.advantages(&rewards, &options),
            &list(&want["advantages"]),
        )?;
        let share = f64_of(&want["frac_reward_zero_std"]).unwrap();
        list_of(&format!("{mode}, frac_reward_zero_std"), &[got.frac_reward_zero_std], &[share])?;
    }

    let named = tensor_rows();
    for (shape, group) in [("main", 4), ("small", 2)] {
        let of = |name: &str| &named[&format!("{shape}.{name}")][0];
        let rewards: Vec<Vec<Option<f64>>> = of("rewards").iter().map(|&r| vec![Some(r)]).collect();
        for scale in ScaleRewards::ALL {
            let options = AdvantageOptions { scale: *scale, ..AdvantageOptions::new(group, vec![1.0]) };
            let got = advantages(&rewards, &options).map_err(error)?;
            list_of(&format!("{shape}, {scale}"), &got.values, &exact.advantages(&rewards, &options))?;
            let want = of(&format!("adv_{scale}"));
            list_of(&format!("TRL, {shape}, {scale}"), &rounded.advantages(&rewards, &options), want)?;
            let size = if *scale == ScaleRewards::Batch { rewards.len() } else { group };
            let std_by = |formulas: &Formulas| -> Vec<f64> {
                of("rewards").chunks(size).flat_map(|r| vec![formulas.std(r); size]).collect()
            };
            let std = match scale {
                ScaleRewards::Batch => vec![got.reward.std.unwrap(); size],
                _ => got.group_std.iter().flat_map(|&std| vec![std; group]).collect(),
            };
            list_of(&format!("{shape}, std of {scale}"), &std, &std_by(&exact))?;
            let want = of(&format!("reward_std_{scale}"));
            list_of(&format!("TRL, {shape}, std of {scale}"), &std_by(&rounded), want)?;
        }
        let (scale, baseline) = (ScaleRewards::None, Baseline::LeaveOneOut);
        let options = AdvantageOptions { scale, baseline, ..AdvantageOptions::new(group, vec![1.0]) };
        let got = advantages(&rewards, &options).map_err(error)?;
        list_of(&format!("{shape}, leave-one-out"), &got.values, of("adv_rloo"))?;
    }
    Ok(compared)
}
