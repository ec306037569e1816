//! The metrics of a step from those of its completions.
use xtrain_tensor::math::exp_f64;

use super::metrics::{ClipRatios, PolicyMetrics, SamplingMetrics};
use super::options::{LossType, PolicyLoss};
use super::row::PolicyRow;
use super::row_output::RowOutput;
use super::stats::sum;

impl PolicyLoss {
    /// The metrics of a step.
    pub(super) fn metrics(
        &self,
        rows: &[PolicyRow<'_>],
        outputs: &[RowOutput],
        policy_loss: f64,
    ) -> PolicyMetrics {
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
