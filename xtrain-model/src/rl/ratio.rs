//! The ratios of a completion: importance ratio, `vespo`'s phi, and the correction for the sampler.
use xtrain_tensor::math::{exp_f64, log_f64};

use super::options::{ImportanceSamplingLevel, PolicyLoss, SamplerCorrection};
use super::row::PolicyRow;
use super::stats::sum;

/// ln 1e-8, the smallest log-ratio of a sequence in `vespo`.
const LN_1E_8: f64 = -18.420_680_743_952_367;

/// One value for the whole completion, or one for each of its tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ratio {
    /// Of the completion.
    Sequence(f64),
    /// Of each token in [`tokens`].
    Tokens(Vec<f64>),
}

impl Ratio {
    /// The value at the `at`-th token of the loss mask.
    pub(super) fn at(&self, at: usize) -> f64 {
        match self {
            Ratio::Sequence(ratio) => *ratio,
            Ratio::Tokens(ratios) => ratios[at],
        }
    }

    /// One value, or one for each token.
    pub(super) fn values(&self) -> &[f64] {
        match self {
            Ratio::Sequence(ratio) => std::slice::from_ref(ratio),
            Ratio::Tokens(ratios) => ratios,
        }
    }
}

/// The mean over the tokens, 0 of none.
pub(super) fn token_mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len().max(1) as f64;
    sum(values) / n
}

impl PolicyLoss {
    /// The importance ratio exp(logp - old) of the completion's `tokens`.
    pub(super) fn importance_ratio(&self, row: &PolicyRow<'_>, tokens: &[usize]) -> Ratio {
        let differences = tokens.iter().map(|&t| row.logp[t] - row.old[t]);
        match self.level {
            ImportanceSamplingLevel::Token => Ratio::Tokens(differences.map(exp_f64).collect()),
            ImportanceSamplingLevel::Sequence => Ratio::Sequence(exp_f64(token_mean(differences))),
        }
    }

    /// Whether the off-policy mask keeps the completion.
    pub(super) fn keeps(&self, row: &PolicyRow<'_>, tokens: &[usize]) -> bool {
        let sampler = row.sampler.unwrap_or(row.old);
        let drift = || token_mean(tokens.iter().map(|&t| sampler[t] - row.logp[t]));
        self.off_policy_mask_threshold.is_none_or(|limit| row.advantage >= 0.0 || drift() <= limit)
    }
}

/// phi of `vespo`: exp((lambda + kappa v) - lambda e^v), v the clamped sum of the clamped log-ratios. The correction
/// for the sampler adds the logarithms of its ratios.
pub(super) fn vespo_phi(row: &PolicyRow<'_>, tokens: &[usize], correction: Option<&Ratio>) -> f64 {
    let log = |ratio: &f64| match *ratio {
        ratio if ratio <= 1e-8 => LN_1E_8,
        ratio => log_f64(ratio).min(20.0),
    };
    let clamped = |t: &usize| (row.logp[*t] - row.old[*t]).clamp(-20.0, 20.0);
    let corrected = sum(correction.iter().flat_map(|ratio| ratio.values().iter().map(log)));
    let v = (sum(tokens.iter().map(clamped)) + corrected).clamp(LN_1E_8, 20.0);
    let (kappa, lambda) = if row.advantage >= 0.0 { (2.0, 3.0) } else { (3.0, 2.0) };
    exp_f64((lambda + kappa * v) - lambda * exp_f64(v))
}

/// The ratio exp(old - sampler) of the completion's `tokens`, after the bounds of `correction`. Without a correction:
/// of each token.
pub(super) fn sampler_ratio(
    row: &PolicyRow<'_>,
    sampler: &[f64],
    tokens: &[usize],
    correction: Option<SamplerCorrection>,
) -> Ratio {
    let differences = tokens.iter().map(|&t| row.old[t] - sampler[t]);
    let bounded = |ratio: f64| {
        let Some(SamplerCorrection { mode, min, max }) = correction else { return ratio };
        let (below, above) = (min.filter(|min| ratio < *min), max.filter(|max| ratio > *max));
        match below.or(above) {
            Some(_) if mode.is_mask() => 0.0,
            Some(bound) => bound,
            None => ratio,
        }
    };
    if correction.is_some_and(|c| c.mode.is_sequence()) {
        Ratio::Sequence(bounded(exp_f64(sum(differences))))
    } else {
        Ratio::Tokens(differences.map(|d| bounded(exp_f64(d))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_whose_drift_is_the_threshold_is_kept() {
        let loss = |limit| PolicyLoss { off_policy_mask_threshold: Some(limit), ..PolicyLoss::default() };
        let (logp, sampler) = ([-0.75, -0.25], [0.0, 0.0]);
        let row = |advantage| PolicyRow {
            sampler: Some(&sampler),
            ..PolicyRow::on_policy(&logp, &[true, true], advantage)
        };
        assert!(loss(0.5).keeps(&row(-1.0), &[0, 1]));
        assert!(!loss(0.499_999).keeps(&row(-1.0), &[0, 1]));
        assert!(loss(0.0).keeps(&row(0.0), &[0, 1]) && loss(0.0).keeps(&row(1.0), &[0, 1]));
    }

    #[test]
    fn the_logarithm_of_a_correction_is_at_most_20_in_vespo() {
        let old = [0.0];
        let row = PolicyRow { old: &old, ..PolicyRow::on_policy(&[-20.0], &[true], 1.0) };
        // v = -20 + 20 = 0, so phi = e^(3 - 3)
        for large in [20.0, 25.0, 300.0] {
            let ratio = Ratio::Sequence(exp_f64(large));
            assert_eq!(vespo_phi(&row, &[0], Some(&ratio)), 1.0, "e^{large}");
        }
        // v = -20 + 19 = -1
        let below = vespo_phi(&row, &[0], Some(&Ratio::Sequence(exp_f64(19.0))));
        assert!((below.ln() - (3.0 - 2.0 - 3.0 * (-1.0f64).exp())).abs() < 1e-12, "{below}");
    }
}
