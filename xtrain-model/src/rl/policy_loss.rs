//! The value of a policy loss, its weights and its metrics.
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::math::exp_f64;

use super::error::{Result, RlError};
use super::metrics::{ClipRatios, PolicyMetrics, SamplingMetrics};
use super::options::{ImportanceSamplingLevel, LossType, PolicyLoss};
use super::ratio::{Ratio, sampler_ratio, token_mean, vespo_phi};
use super::row::{PolicyOutput, PolicyRow};
use super::stats::{quantile, sum};
use super::surrogate::Term;

/// What one completion adds to the loss and to the metrics.
struct RowOutput {
    /// The indices of the tokens of the loss mask. The other lists have one value for each of them.
    tokens: Vec<usize>,
    /// Whether the entropy quantile keeps each token.
    high_entropy: Vec<bool>,
    /// The sum of the terms, not divided.
    sum: f64,
    /// The derivative of `sum` with respect to each log-probability.
    gradient: Vec<f64>,
    kl: Vec<f64>,
    ratio: Ratio,
    phi: f64,
    /// The ratio of the sampler, if the row has its log-probabilities.
    sampler_ratio: Option<Ratio>,
}

impl PolicyLoss {
    /// The loss of a step and its gradients. `rows` holds every completion of the step.
    ///
    /// Formulas and the order of sums: docs/numerics.md, section 8. `dapo`, `cispo` and `vespo` divide by the number of
    /// tokens of the step.
    ///
    /// # Errors
    /// As [`PolicyLoss::check`]; [`RlError::Length`] and [`RlError::Missing`] for a row with a list of another length
    /// or without a required list; [`RlError::NotFinite`] for an operand at a token of the loss mask, a term or a
    /// gradient that is not finite.
    pub fn evaluate(&self, rows: &[PolicyRow<'_>]) -> Result<PolicyOutput> {
        let tokens: usize = rows.iter().map(|row| self.tokens(row).len()).sum();
        self.evaluate_part(rows, tokens.max(1) as f64)
    }

    /// [`PolicyLoss::evaluate`] for one of several optimizer steps over a generation batch. `dapo`, `cispo` and `vespo`
    /// divide by `step_tokens`, the number of tokens of the generation batch divided by the number of steps.
    ///
    /// # Errors
    /// As [`PolicyLoss::evaluate`]; [`RlError::Option`] unless `step_tokens` is positive and finite.
    pub fn evaluate_part(&self, rows: &[PolicyRow<'_>], step_tokens: f64) -> Result<PolicyOutput> {
        self.check()?;
        if !(step_tokens > 0.0 && step_tokens.is_finite()) {
            let (want, got) = ("a positive number".into(), step_tokens.to_string());
            return Err(RlError::Option { field: "step_tokens", want, got });
        }
        for (completion, row) in rows.iter().enumerate() {
            row.check(completion, self)?;
        }
        let threshold = self.entropy_threshold(rows);
        let outputs: Vec<RowOutput> = rows
            .iter()
            .enumerate()
            .map(|(completion, row)| self.row_output(completion, row, threshold))
            .collect::<Result<_>>()?;

        let divisors = self.divisors(rows, &outputs, step_tokens);
        let policy_loss = sum(outputs.iter().zip(&divisors).map(|(output, divisor)| output.sum / divisor));
        let mut weights: Vec<Vec<f64>> = rows.iter().map(|row| vec![0.0; row.logp.len()]).collect();
        let mut bonus = weights.clone();
        let active: usize = outputs.iter().map(|o| o.high_entropy.iter().filter(|&&kept| kept).count()).sum();
        let token_bonus = self.entropy_coef / active.max(1) as f64;
        let mut active_entropy = 0.0;
        for (at, output) in outputs.iter().enumerate() {
            for (i, &t) in output.tokens.iter().enumerate() {
                weights[at][t] = 0.0 - output.gradient[i] / divisors[at];
                if self.entropy_coef != 0.0 && output.high_entropy[i] {
                    bonus[at][t] = token_bonus;
                    active_entropy += rows[at].entropy.map_or(0.0, |entropy| entropy[t]);
                }
            }
        }
        let loss = if self.entropy_coef == 0.0 {
            policy_loss
        } else {
            policy_loss - self.entropy_coef * (active_entropy / active.max(1) as f64)
        };
        if !loss.is_finite() {
            let completion = outputs.iter().position(|o| !o.sum.is_finite()).unwrap_or(rows.len() - 1);
            return Err(RlError::NotFinite { completion, token: None, what: "sum of the loss", got: loss });
        }
        Ok(PolicyOutput { loss, weights, bonus, metrics: self.metrics(rows, &outputs, policy_loss) })
    }

    /// The indices of the tokens that contribute to the loss.
    fn tokens(&self, row: &PolicyRow<'_>) -> Vec<usize> {
        let excluded = self.mask_truncated_completions && row.truncated;
        let counts = |t: &usize| row.mask[*t] && !excluded;
        (0..row.mask.len()).filter(counts).collect()
    }

    /// The smallest entropy of a kept token.
    fn entropy_threshold(&self, rows: &[PolicyRow<'_>]) -> Option<f64> {
        if self.top_entropy_quantile >= 1.0 {
            return None;
        }
        let of_row = |row: &PolicyRow<'_>| -> Vec<f64> {
            row.entropy.map_or(Vec::new(), |entropy| self.tokens(row).iter().map(|&t| entropy[t]).collect())
        };
        let mut entropies: Vec<f64> = rows.iter().flat_map(of_row).collect();
        quantile(&mut entropies, 1.0 - self.top_entropy_quantile)
    }

    fn row_output(
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

    /// The divisor of each row.
    fn divisors(&self, rows: &[PolicyRow<'_>], outputs: &[RowOutput], step_tokens: f64) -> Vec<f64> {
        let count = |at: usize| {
            let masked_too = faults::on(Fault::MaskedTokensCounted);
            if masked_too { rows[at].mask.len() } else { outputs[at].tokens.len() }
        };
        let step: usize = (0..rows.len()).map(count).sum();
        let batch = rows.len() as f64;
        (0..rows.len())
            .map(|at| match self.loss_type {
                LossType::Grpo | LossType::Sapo => count(at).max(1) as f64 * batch,
                LossType::Bnpo => step.max(1) as f64,
                LossType::DrGrpo => batch * self.max_completion_length.unwrap_or(1) as f64,
                LossType::Dapo | LossType::Cispo | LossType::Vespo => step_tokens,
                LossType::Luspo => batch,
            })
            .collect()
    }

    fn metrics(&self, rows: &[PolicyRow<'_>], outputs: &[RowOutput], policy_loss: f64) -> PolicyMetrics {
        let tokens: usize = outputs.iter().map(|o| o.tokens.len()).sum();
        let per_token = |total: f64| (tokens > 0).then(|| total / tokens as f64);
        let entropy = |(row, output): (&PolicyRow<'_>, &RowOutput)| {
            let values = row.entropy?;
            Some(output.tokens.iter().map(|&t| values[t]).collect::<Vec<_>>())
        };
        let entropies: Option<Vec<Vec<f64>>> = rows.iter().zip(outputs).map(entropy).collect();
        let with_tokens = || outputs.iter().filter(|o| !o.tokens.is_empty());
        let ratios = || with_tokens().flat_map(|o| o.ratio.values().iter().copied());
        let kl = self.needs_reference().then(|| sum(outputs.iter().flat_map(|o| o.kl.iter().copied())));
        let vespo = self.loss_type == LossType::Vespo && !rows.is_empty();
        PolicyMetrics {
            policy_loss,
            tokens,
            entropy: entropies.and_then(|e| per_token(sum(e.into_iter().flatten()))),
            kl: kl.and_then(per_token),
            clip_ratio: self.loss_type.is_clipped().then(|| self.clip_ratios(rows, outputs)),
            cispo_clip_ratio: (self.loss_type == LossType::Cispo).then(|| {
                let above = |c: f64, advantage: f64| c > self.epsilon_high() && advantage > 0.0;
                let counts = Counts::new(rows, outputs, above);
                counts.share()
            }),
            vespo_phi_seq_mean: vespo.then(|| sum(outputs.iter().map(|o| o.phi)) / rows.len() as f64),
            ratio_min: ratios().reduce(f64::min),
            ratio_max: ratios().reduce(f64::max),
            sampling: sampling(rows, outputs, tokens),
        }
    }

    fn clip_ratios(&self, rows: &[PolicyRow<'_>], outputs: &[RowOutput]) -> ClipRatios {
        let is_low = |c: f64, advantage: f64| self.bounded(c) < 1.0 - self.epsilon && advantage < 0.0;
        let is_high = |c: f64, advantage: f64| self.bounded(c) > 1.0 + self.epsilon_high() && advantage > 0.0;
        let low = Counts::new(rows, outputs, is_low);
        let high = Counts::new(rows, outputs, is_high);
        ClipRatios {
            low_mean: low.share(),
            low_min: low.shares().reduce(f64::min),
            high_mean: high.share(),
            high_max: high.shares().reduce(f64::max),
            region_mean: low.share_with(&high),
        }
    }
}

/// `factor * value`, but 0 for a factor of 0: a dropped token adds nothing, whatever its value.
fn masked(factor: f64, value: f64) -> f64 {
    if factor == 0.0 { 0.0 } else { factor * value }
}

/// For each completion, the number of ratios that satisfy a condition and the number of ratios.
struct Counts(Vec<(usize, usize)>);

impl Counts {
    fn new(rows: &[PolicyRow<'_>], outputs: &[RowOutput], condition: impl Fn(f64, f64) -> bool) -> Counts {
        let of_row = |(row, output): (&PolicyRow<'_>, &RowOutput)| {
            let ratios = output.ratio.values();
            (ratios.iter().filter(|c| condition(**c, row.advantage)).count(), ratios.len())
        };
        Counts(rows.iter().zip(outputs).map(of_row).collect())
    }

    /// The share of all ratios, 0 of none.
    fn share(&self) -> f64 {
        let (hits, all) = self.0.iter().fold((0, 0), |(a, b), (hits, all)| (a + hits, b + all));
        hits as f64 / all.max(1) as f64
    }

    /// The share of all ratios that satisfy this or the other condition, which exclude each other.
    fn share_with(&self, other: &Counts) -> f64 {
        let union = self.0.iter().zip(&other.0).map(|(a, b)| (a.0 + b.0, a.1)).collect();
        Counts(union).share()
    }

    /// The share of each completion that has a ratio.
    fn shares(&self) -> impl Iterator<Item = f64> {
        self.0.iter().filter(|(_, all)| *all > 0).map(|(hits, all)| *hits as f64 / *all as f64)
    }
}

/// The difference between old and sampler, if every row has the sampler's log-probabilities and a token counts.
fn sampling(rows: &[PolicyRow<'_>], outputs: &[RowOutput], tokens: usize) -> Option<SamplingMetrics> {
    let samplers: Vec<&[f64]> = rows.iter().map(|row| row.sampler).collect::<Option<_>>()?;
    if tokens == 0 {
        return None;
    }
    let all = || (0..rows.len()).flat_map(|at| outputs[at].tokens.iter().map(move |&t| (at, t)));
    let differences: Vec<f64> = all().map(|(at, t)| rows[at].old[t] - samplers[at][t]).collect();
    let ratios: Vec<f64> = outputs
        .iter()
        .filter(|o| !o.tokens.is_empty())
        .flat_map(|o| o.sampler_ratio.iter().flat_map(|r| r.values().iter().copied()))
        .collect();
    let mean = |values: &mut dyn Iterator<Item = f64>| sum(values) / tokens as f64;
    Some(SamplingMetrics {
        logp_difference_mean: mean(&mut differences.iter().map(|d| d.abs())),
        logp_difference_max: differences.iter().fold(0.0, |max, d| f64::max(max, d.abs())),
        importance_sampling_ratio_min: ratios.iter().copied().reduce(f64::min).unwrap_or(1.0),
        importance_sampling_ratio_mean: sum(ratios.iter().copied()) / ratios.len().max(1) as f64,
        importance_sampling_ratio_max: ratios.iter().copied().reduce(f64::max).unwrap_or(1.0),
        mismatch_kl: mean(&mut differences.iter().map(|&d| (exp_f64(d) - d) - 1.0)),
    })
}
