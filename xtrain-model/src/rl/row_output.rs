//! The terms of one completion and their derivatives.
use xtrain_tensor::math::exp_f64;

use super::error::{Result, RlError};
use super::options::{ImportanceSamplingLevel, LossType, PolicyLoss};
use super::ratio::{Ratio, sampler_ratio, token_mean, vespo_phi};
use super::row::PolicyRow;
use super::surrogate::Term;

/// What one completion adds to the loss and to the metrics.
pub(super) struct RowOutput {
    /// The indices of the tokens of the loss mask. The other lists have one value for each of them.
    pub(super) tokens: Vec<usize>,
    /// Whether the entropy quantile keeps each token.
    pub(super) high_entropy: Vec<bool>,
    /// The sum of the terms, not divided.
    pub(super) sum: f64,
    /// The derivative of `sum` with respect to each log-probability.
    pub(super) gradient: Vec<f64>,
    /// The KL divergence of each token. Empty without a reference.
    pub(super) kl: Vec<f64>,
    /// The importance ratio.
    pub(super) ratio: Ratio,
    /// phi of `vespo`, 1 for other losses.
    pub(super) phi: f64,
    /// The ratio of the sampler, if the row has its log-probabilities.
    pub(super) sampler_ratio: Option<Ratio>,
}

impl PolicyLoss {
    /// The indices of the tokens that contribute to the loss.
    pub(super) fn tokens(&self, row: &PolicyRow<'_>) -> Vec<usize> {
        let excluded = self.mask_truncated_completions && row.truncated;
        let counts = |t: &usize| row.mask[*t] && !excluded;
        (0..row.mask.len()).filter(counts).collect()
    }

    /// The terms of one completion. `threshold` is the smallest entropy of a kept token.
    pub(super) fn row_output(
        &self,
        completion: usize,
        row: &PolicyRow<'_>,
        threshold: Option<f64>,
    ) -> Result<RowOutput> {
        let tokens = self.tokens(row);
        let n = tokens.len();
        let ratio = self.importance_ratio(row, &tokens);
        let sampler_ratio = row.sampler.map(|s| sampler_ratio(row, s, &tokens, self.sampler_correction));
        let correction = sampler_ratio.as_ref().filter(|_| self.sampler_correction.is_some());
        let is_vespo = self.loss_type == LossType::Vespo;
        let phi = if is_vespo { vespo_phi(row, &tokens, correction) } else { 1.0 };
        let high_entropy: Vec<bool> = match (threshold, row.entropy) {
            (Some(threshold), Some(entropy)) => tokens.iter().map(|&t| entropy[t] >= threshold).collect(),
            _ => vec![true; n],
        };
        let keeps_row = self.keeps(row, &tokens);
        let kept: Vec<f64> = (0..n)
            .map(|i| match correction {
                _ if !(keeps_row && high_entropy[i]) => 0.0,
                Some(ratio) if !is_vespo => ratio.at(i),
                _ => 1.0,
            })
            .collect();
        let terms: Vec<Term> =
            (0..n).map(|i| self.term(ratio.at(i), phi, row.logp[tokens[i]], row.advantage)).collect();

        // The KL divergence and its direct derivative, both with the ratio if bias-corrected.
        let (mut kl, mut dkl) = (Vec::new(), Vec::new());
        if let Some(reference) = row.reference.filter(|_| self.needs_reference()) {
            for (i, &t) in tokens.iter().enumerate() {
                let log_ratio = reference[t] - row.logp[t];
                let e = exp_f64(log_ratio);
                let c = if self.bias_corrected_kl { ratio.at(i) } else { 1.0 };
                kl.push(((e - log_ratio) - 1.0) * c);
                dkl.push((1.0 - e) * c);
            }
        }

        // At sequence level, every token moves the ratio of all terms by 1 / n.
        let (shared_kept, shared_kl) = match self.level {
            ImportanceSamplingLevel::Token => (None, None),
            ImportanceSamplingLevel::Sequence => {
                (Some(token_mean(kept.iter().copied())), Some(token_mean(kl.iter().copied())))
            }
        };
        let mut gradient = Vec::with_capacity(n);
        let mut total = 0.0;
        for (i, &token) in tokens.iter().enumerate() {
            let Term { value, by_ratio, by_logp } = terms[i];
            let mut loss = masked(kept[i], value);
            let mut slope = match shared_kept {
                None => masked(kept[i], by_ratio + by_logp),
                Some(share) => masked(kept[i], by_logp) + masked(share, by_ratio),
            };
            if !kl.is_empty() {
                let by_ratio = if self.bias_corrected_kl { shared_kl.unwrap_or(kl[i]) } else { 0.0 };
                loss += self.beta * kl[i];
                slope += self.beta * (dkl[i] + by_ratio);
            }
            for (what, got) in [("loss", loss), ("gradient of the loss", slope)] {
                if !got.is_finite() {
                    return Err(RlError::NotFinite { completion, token: Some(token), what, got });
                }
            }
            total += loss;
            gradient.push(slope);
        }
        Ok(RowOutput { tokens, high_entropy, sum: total, gradient, kl, ratio, phi, sampler_ratio })
    }
}

/// `factor * value`, but 0 for a factor of 0: a dropped token adds nothing, whatever its value.
fn masked(factor: f64, value: f64) -> f64 {
    if factor == 0.0 { 0.0 } else { factor * value }
}
