//! The metrics of a policy loss, with the names and definitions of TRL.

/// Metrics of a step. A mean runs over the tokens of the loss mask; `None`: not defined for the options, or no value.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PolicyMetrics {
    /// The loss without the entropy bonus.
    pub policy_loss: f64,
    /// Number of tokens of the loss mask.
    pub tokens: usize,
    /// The mean entropy.
    pub entropy: Option<f64>,
    /// The mean KL divergence (k3) from the reference, multiplied by the ratio if it is bias-corrected.
    pub kl: Option<f64>,
    /// The shares of clipped ratios of a clipped loss.
    pub clip_ratio: Option<ClipRatios>,
    /// The share of ratios above `epsilon_high` with a positive advantage, of `cispo`.
    pub cispo_clip_ratio: Option<f64>,
    /// The mean phi over the completions, of `vespo`.
    pub vespo_phi_seq_mean: Option<f64>,
    /// The smallest importance ratio. On-policy: 1.
    pub ratio_min: Option<f64>,
    /// The largest importance ratio. On-policy: 1.
    pub ratio_max: Option<f64>,
    /// The difference from the sampler, if every row has its log-probabilities.
    pub sampling: Option<SamplingMetrics>,
}

/// Shares of clipped ratios: of tokens, or of completions at sequence level. Low: below `1 - epsilon` with a negative
/// advantage. High: above `1 + epsilon_high` with a positive advantage.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClipRatios {
    /// The share clipped low.
    pub low_mean: f64,
    /// The smallest share clipped low of a completion. `None`: no completion has a token.
    pub low_min: Option<f64>,
    /// The share clipped high.
    pub high_mean: f64,
    /// The largest share clipped high of a completion. `None`: no completion has a token.
    pub high_max: Option<f64>,
    /// The share clipped low or high.
    pub region_mean: f64,
}

/// Differences between old and sampler log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SamplingMetrics {
    /// The mean of |old - sampler|.
    pub logp_difference_mean: f64,
    /// The maximum of |old - sampler|. On-policy: exactly 0.
    pub logp_difference_max: f64,
    /// The minimum of exp(old - sampler), of tokens or sequences, after the correction's bounds.
    pub importance_sampling_ratio_min: f64,
    /// The mean of these ratios.
    pub importance_sampling_ratio_mean: f64,
    /// The maximum of these ratios.
    pub importance_sampling_ratio_max: f64,
    /// The mean of exp(x) - x - 1 with x = old - sampler: the KL divergence (k3) of old from sampler.
    pub mismatch_kl: f64,
}

impl PolicyMetrics {
    /// The metrics that have a value, under TRL's names.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        let clip = self.clip_ratio;
        let sampling = self.sampling;
        [
            ("policy_loss", Some(self.policy_loss)),
            ("kl", self.kl),
            ("entropy", self.entropy),
            ("clip_ratio/low_mean", clip.map(|c| c.low_mean)),
            ("clip_ratio/low_min", clip.and_then(|c| c.low_min)),
            ("clip_ratio/high_mean", clip.map(|c| c.high_mean)),
            ("clip_ratio/high_max", clip.and_then(|c| c.high_max)),
            ("clip_ratio/region_mean", clip.map(|c| c.region_mean)),
            ("cispo_clip_ratio", self.cispo_clip_ratio),
            ("vespo/phi_seq_mean", self.vespo_phi_seq_mean),
            ("sampling/sampling_logp_difference/mean", sampling.map(|s| s.logp_difference_mean)),
            ("sampling/sampling_logp_difference/max", sampling.map(|s| s.logp_difference_max)),
            ("sampling/importance_sampling_ratio/min", sampling.map(|s| s.importance_sampling_ratio_min)),
            ("sampling/importance_sampling_ratio/mean", sampling.map(|s| s.importance_sampling_ratio_mean)),
            ("sampling/importance_sampling_ratio/max", sampling.map(|s| s.importance_sampling_ratio_max)),
            ("mismatch_kl", sampling.map(|s| s.mismatch_kl)),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| (name, value)))
        .collect()
    }
}
