//! Advantages from rewards.
use serde::{Deserialize, Serialize};

use super::error::{Result, RlError};
use super::named::named;
use super::stats::{has_spread, mean, std, sum};

/// Added to a standard deviation that divides.
const STD_EPS: f64 = 1e-4;
/// A standard deviation up to this counts as zero in [`Advantages::frac_reward_zero_std`], as in TRL.
const STD_ZERO: f64 = 1e-8;

/// The standard deviation that divides the advantages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRewards {
    /// That of the group.
    #[default]
    Group,
    /// That of the whole step.
    Batch,
    /// None: rewards minus baseline.
    None,
}

/// The value that is subtracted from a reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// The mean reward of the group.
    #[default]
    GroupMean,
    /// The mean reward of the other completions of the group (RLOO).
    LeaveOneOut,
}

/// How the rewards of several functions become one advantage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardAggregation {
    /// The weighted sum of the rewards is normalized.
    #[default]
    SumThenNormalize,
    /// The rewards of each function are normalized in the group; their weighted sum is normalized over the step.
    NormalizeThenSum,
}

named!(ScaleRewards, "scale_rewards":
    Group "group",
    Batch "batch",
    None "none",
);

named!(Baseline, "baseline":
    GroupMean "group_mean",
    LeaveOneOut "leave_one_out",
);

named!(RewardAggregation, "multi_objective_aggregation":
    SumThenNormalize "sum_then_normalize",
    NormalizeThenSum "normalize_then_sum",
);

/// Options of [`advantages`].
#[derive(Debug, Clone, PartialEq)]
pub struct AdvantageOptions {
    /// Number of completions of a prompt. They are consecutive.
    pub group: usize,
    /// The weight of each reward function.
    pub weights: Vec<f64>,
    /// The standard deviation that divides.
    pub scale: ScaleRewards,
    /// The value that is subtracted.
    pub baseline: Baseline,
    /// The order of sum and normalization.
    pub aggregation: RewardAggregation,
}

/// Mean and standard deviation (n - 1) of the rewards that are present.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MeanStd {
    /// The mean. `None`: no reward is present.
    pub mean: Option<f64>,
    /// The standard deviation. `None`: fewer than two rewards are present.
    pub std: Option<f64>,
}

/// Advantages and statistics of the rewards of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Advantages {
    /// The advantage of each completion. Exactly +0 for a completion without a reward, and in a group without spread.
    pub values: Vec<f64>,
    /// The weighted sum of the rewards of each completion. `None`: every function returned `None`.
    pub rewards: Vec<Option<f64>>,
    /// The standard deviation (n - 1) of the weighted rewards of each group. Groups with fewer than two rewards: 0.
    pub group_std: Vec<f64>,
    /// Whether each group has two different rewards. With [`RewardAggregation::NormalizeThenSum`]: of any function.
    pub group_has_spread: Vec<bool>,
    /// Mean and standard deviation of the weighted rewards of the step: TRL's `reward` and `reward_std`.
    pub reward: MeanStd,
    /// Mean and standard deviation of each function: TRL's `rewards/{func}/mean` and `rewards/{func}/std`.
    pub functions: Vec<MeanStd>,
    /// TRL's `frac_reward_zero_std`: the share of completions whose dividing standard deviation is at most 1e-8. With
    /// [`ScaleRewards::Batch`] and [`RewardAggregation::NormalizeThenSum`] that deviation belongs to the step, so the
    /// share is 0 or 1.
    pub frac_reward_zero_std: f64,
}

impl AdvantageOptions {
    /// TRL's defaults for groups of `group` completions.
    pub fn new(group: usize, weights: Vec<f64>) -> AdvantageOptions {
        AdvantageOptions {
            group,
            weights,
            scale: ScaleRewards::default(),
            baseline: Baseline::default(),
            aggregation: RewardAggregation::default(),
        }
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`RlError::Option`] names the field, the valid values and the value found.
    pub fn check(&self) -> Result<()> {
        let refuse = |field, want: &str, got: String| Err(RlError::Option { field, want: want.into(), got });
        if self.group == 0 {
            return refuse("group", "at least 1 completion", "0".into());
        }
        if self.weights.is_empty() {
            return refuse("weights", "a weight for each reward function", "none".into());
        }
        if let Some(weight) = self.weights.iter().find(|w| !w.is_finite()) {
            return refuse("weights", "finite weights", weight.to_string());
        }
        if self.aggregation == RewardAggregation::NormalizeThenSum {
            if self.baseline != Baseline::GroupMean {
                return refuse("baseline", "group_mean with normalize_then_sum", self.baseline.to_string());
            }
            if self.scale != ScaleRewards::Group {
                return refuse("scale_rewards", "group with normalize_then_sum", self.scale.to_string());
            }
        }
        Ok(())
    }
}

/// Advantages of the completions of a step: `(r - baseline) / (std + 1e-4)`, see docs/numerics.md, section 8.
///
/// | operand | shape | |
/// |---|---|---|
/// | `rewards` | `[B * G][F]` | groups of G consecutive completions, F reward functions; `None` is skipped |
///
/// Sums run over functions, completions of a group and completions of the step in ascending order, from +0.
///
/// # Errors
/// [`RlError::Option`] for invalid options, [`RlError::Groups`] for an incomplete group, [`RlError::Functions`] for a
/// completion with another number of rewards, [`RlError::Reward`] for a reward that is not finite, and
/// [`RlError::Deviation`] or [`RlError::NotFinite`] for finite rewards whose standard deviation or advantage overflows.
pub fn advantages(rewards: &[Vec<Option<f64>>], options: &AdvantageOptions) -> Result<Advantages> {
    options.check()?;
    check_rewards(rewards, options)?;
    let AdvantageOptions { group, weights, scale, .. } = options;
    let totals: Vec<Option<f64>> = rewards.iter().map(|r| weighted_reward(r, weights)).collect();
    if let Some(completion) = totals.iter().position(|r| r.is_some_and(|r| !r.is_finite())) {
        let got = totals[completion].unwrap_or(f64::NAN);
        return Err(RlError::NotFinite { completion, token: None, what: "weighted reward", got });
    }
    let groups = || totals.chunks(*group).map(present);
    let group_std: Vec<f64> = groups().map(|g| std(&g).unwrap_or(0.0)).collect();
    let of_function = |f: usize| present(&rewards.iter().map(|r| r[f]).collect::<Vec<_>>());
    let mean_std = |values: &[f64]| MeanStd { mean: mean(values), std: std(values) };

    let (mut values, group_has_spread, step_std);
    match options.aggregation {
        RewardAggregation::SumThenNormalize => {
            group_has_spread = groups().map(|g| has_spread(&g)).collect::<Vec<_>>();
            step_std = (*scale == ScaleRewards::Batch).then(|| std(&present(&totals)).unwrap_or(0.0));
            values = subtract_baseline(&totals, options);
            for (at, value) in values.iter_mut().enumerate() {
                if *scale != ScaleRewards::None {
                    *value /= step_std.unwrap_or(group_std[at / group]) + STD_EPS;
                }
            }
        }
        RewardAggregation::NormalizeThenSum => {
            let spread = |g: &[Vec<Option<f64>>]| {
                (0..weights.len()).any(|f| has_spread(&present(&g.iter().map(|r| r[f]).collect::<Vec<_>>())))
            };
            group_has_spread = rewards.chunks(*group).map(spread).collect::<Vec<_>>();
            let sums = normalized_sums(rewards, options);
            let all = present(&sums);
            let (center, deviation) = (mean(&all).unwrap_or(0.0), std(&all).unwrap_or(0.0));
            step_std = Some(deviation);
            let normalize = |sum: &Option<f64>| sum.map_or(0.0, |r| (r - center) / (deviation + STD_EPS));
            values = sums.iter().map(normalize).collect();
        }
    }
    for (at, value) in values.iter_mut().enumerate() {
        if !group_has_spread[at / group] || totals[at].is_none() {
            *value = 0.0;
        }
    }
    let reward = mean_std(&present(&totals));
    let functions: Vec<MeanStd> = (0..weights.len()).map(|f| mean_std(&of_function(f))).collect();
    let finite = |of: &MeanStd| [of.mean, of.std].into_iter().flatten().all(f64::is_finite);
    if let Some(f) = functions.iter().position(|of| !finite(of)) {
        return Err(overflow(&rewards.iter().map(|r| r[f]).collect::<Vec<_>>()));
    }
    if !finite(&reward) || group_std.iter().any(|std| !std.is_finite()) {
        return Err(overflow(&totals));
    }
    if let Some(completion) = values.iter().position(|a| !a.is_finite()) {
        return Err(RlError::NotFinite {
            completion,
            token: None,
            what: "advantage",
            got: values[completion],
        });
    }
    let zeros = |std: &f64| f64::from(u8::from(*std <= STD_ZERO));
    let frac_reward_zero_std = match step_std {
        _ if rewards.is_empty() => 0.0,
        Some(std) => zeros(&std),
        None => sum(group_std.iter().map(zeros)) / group_std.len() as f64,
    };
    Ok(Advantages {
        values,
        reward,
        functions,
        rewards: totals,
        group_std,
        group_has_spread,
        frac_reward_zero_std,
    })
}

fn magnitude(reward: Option<f64>) -> f64 {
    reward.map_or(0.0, f64::abs)
}

/// The error for rewards whose standard deviation overflows.
fn overflow(rewards: &[Option<f64>]) -> RlError {
    let largest = (0..rewards.len()).max_by(|&a, &b| magnitude(rewards[a]).total_cmp(&magnitude(rewards[b])));
    let completion = largest.unwrap_or(0);
    RlError::Deviation { completion, got: rewards.get(completion).copied().flatten().unwrap_or(f64::NAN) }
}

fn check_rewards(rewards: &[Vec<Option<f64>>], options: &AdvantageOptions) -> Result<()> {
    let (group, want) = (options.group, options.weights.len());
    if !rewards.len().is_multiple_of(group) {
        return Err(RlError::Groups { group, got: rewards.len() });
    }
    for (completion, row) in rewards.iter().enumerate() {
        if row.len() != want {
            return Err(RlError::Functions { completion, want, got: row.len() });
        }
        let invalid = |reward: &Option<f64>| reward.is_some_and(|r| !r.is_finite());
        if let Some(function) = row.iter().position(invalid) {
            let got = row[function].unwrap_or(f64::NAN);
            return Err(RlError::Reward { completion, function, got });
        }
    }
    Ok(())
}

/// The values that are not `None`.
fn present(values: &[Option<f64>]) -> Vec<f64> {
    values.iter().copied().flatten().collect()
}

/// The weighted sum of the rewards of a completion that are present, functions in ascending order from +0, or `None` of
/// none.
pub fn weighted_reward(rewards: &[Option<f64>], weights: &[f64]) -> Option<f64> {
    let terms = rewards.iter().zip(weights).filter_map(|(r, w)| r.map(|r| w * r));
    rewards.iter().any(Option::is_some).then(|| sum(terms))
}

/// Reward minus baseline. A completion without a reward, or alone in its group, has 0.
fn subtract_baseline(totals: &[Option<f64>], options: &AdvantageOptions) -> Vec<f64> {
    let mut values = Vec::with_capacity(totals.len());
    for group in totals.chunks(options.group) {
        let center = mean(&present(group)).unwrap_or(0.0);
        values.extend(group.iter().enumerate().map(|(at, reward)| {
            let Some(reward) = reward else { return 0.0 };
            let baseline = match options.baseline {
                Baseline::GroupMean => Some(center),
                Baseline::LeaveOneOut => mean(&present(&[&group[..at], &group[at + 1..]].concat())),
            };
            baseline.map_or(0.0, |baseline| reward - baseline)
        }));
    }
    values
}

/// The weighted sums of the rewards of each function, normalized in their group.
fn normalized_sums(rewards: &[Vec<Option<f64>>], options: &AdvantageOptions) -> Vec<Option<f64>> {
    let mut sums = Vec::with_capacity(rewards.len());
    for group in rewards.chunks(options.group) {
        let statistics: Vec<(f64, f64)> = (0..options.weights.len())
            .map(|f| {
                let values = present(&group.iter().map(|r| r[f]).collect::<Vec<_>>());
                (mean(&values).unwrap_or(0.0), std(&values).unwrap_or(0.0))
            })
            .collect();
        sums.extend(group.iter().map(|row| {
            let z: Vec<Option<f64>> = row
                .iter()
                .zip(&statistics)
                .map(|(r, (mean, std))| r.map(|r| (r - mean) / (std + STD_EPS)))
                .collect();
            weighted_reward(&z, &options.weights)
        }));
    }
    sums
}
