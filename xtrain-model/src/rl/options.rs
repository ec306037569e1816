//! The options of a policy loss.
use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::{Result, RlError};
use super::named::named;

/// The policy term of a token and the divisor of its sum, with the names of TRL. GSPO is [`LossType::Grpo`] with
/// [`ImportanceSamplingLevel::Sequence`]. c is the importance ratio, A the advantage, l the log-probability; n, N, B
/// are the tokens of a completion, the tokens of the step and the completions of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// `-min(min(c, delta) A, clip(c, 1 - epsilon, 1 + epsilon_high) A)`, divided by n B.
    Grpo,
    /// As `grpo`, divided by N.
    Bnpo,
    /// As `grpo`, divided by B times the maximum completion length.
    DrGrpo,
    /// As `grpo`, divided by N, or by the tokens of the whole generation batch.
    #[default]
    Dapo,
    /// `-stopgrad(min(c, epsilon_high)) A l`, divided as `dapo`. The clip is at `epsilon_high`, not 1 +
    /// `epsilon_high`.
    Cispo,
    /// `-(4 / tau) sigmoid(tau (c - 1)) A`, tau = 1 if A > 0 and 1.05 otherwise, divided as `grpo`.
    Sapo,
    /// As `grpo`, divided by B.
    Luspo,
    /// `-stopgrad(phi) A l`, phi = exp(lambda + kappa v - lambda e^v), v the log-ratio of the sequence, divided as
    /// `dapo`.
    Vespo,
}

named!(LossType, "loss_type":
    Grpo "grpo",
    Bnpo "bnpo",
    DrGrpo "dr_grpo",
    Dapo "dapo",
    Cispo "cispo",
    Sapo "sapo",
    Luspo "luspo",
    Vespo "vespo",
);

impl LossType {
    /// Whether the term is clipped on both sides, so that `epsilon`, `epsilon_high` and `delta` act on it.
    pub fn is_clipped(self) -> bool {
        use LossType::{Bnpo, Dapo, DrGrpo, Grpo, Luspo};
        matches!(self, Grpo | Bnpo | DrGrpo | Dapo | Luspo)
    }
}

/// The importance ratio of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportanceSamplingLevel {
    /// The ratio of the token.
    #[default]
    Token,
    /// The geometric mean of the ratios of the sequence (GSPO).
    Sequence,
}

named!(ImportanceSamplingLevel, "importance_sampling_level":
    Token "token",
    Sequence "sequence",
);

/// How the policy term is corrected for a sampler whose log-probabilities differ from the old ones: it is multiplied
/// by the ratio. `vespo` adds the logarithm of the ratio to that of the sequence instead. `xtrain grpo` needs none: its
/// sampler has the trainer's log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerCorrection {
    /// The ratio exp(old - sampler) of a token or of a sequence, and the treatment of ratios outside the bounds.
    pub mode: SamplerCorrectionMode,
    /// The lower bound. `None`: no bound.
    pub min: Option<f64>,
    /// The upper bound. `None`: no bound.
    pub max: Option<f64>,
}

/// The ratio of a [`SamplerCorrection`], with the names of TRL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SamplerCorrectionMode {
    /// Ratios of tokens, clamped to the bounds.
    TokenTruncate,
    /// Ratios of tokens, 0 outside the bounds.
    TokenMask,
    /// The product of the ratios of a sequence, clamped to the bounds.
    SequenceTruncate,
    /// The product of the ratios of a sequence, 0 outside the bounds.
    SequenceMask,
}

named!(SamplerCorrectionMode, "importance_sampling_mode":
    TokenTruncate "token_truncate",
    TokenMask "token_mask",
    SequenceTruncate "sequence_truncate",
    SequenceMask "sequence_mask",
);

impl SamplerCorrectionMode {
    /// Whether the ratio is that of the sequence.
    pub fn is_sequence(self) -> bool {
        matches!(self, SamplerCorrectionMode::SequenceTruncate | SamplerCorrectionMode::SequenceMask)
    }

    /// Whether a ratio outside the bounds becomes 0.
    pub fn is_mask(self) -> bool {
        matches!(self, SamplerCorrectionMode::TokenMask | SamplerCorrectionMode::SequenceMask)
    }
}

/// A policy loss with its options. The defaults are those of TRL 1.16.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolicyLoss {
    /// The policy term and its divisor.
    pub loss_type: LossType,
    /// The importance ratio: of a token or of a sequence.
    pub level: ImportanceSamplingLevel,
    /// The lower clip: ratios below `1 - epsilon`. Infinite: no clip.
    pub epsilon: f64,
    /// The upper clip: ratios above `1 + epsilon_high`; of `cispo` and its ratio `epsilon_high`. `None`: `epsilon`.
    /// Infinite: no clip.
    pub epsilon_high: Option<f64>,
    /// The upper bound of the ratio of a clipped loss, also for negative advantages. `None`: no bound.
    pub delta: Option<f64>,
    /// The weight of the KL divergence from the reference model. 0: no reference is needed.
    pub beta: f64,
    /// Whether the KL divergence is multiplied by the importance ratio.
    pub bias_corrected_kl: bool,
    /// The weight of the mean entropy, which is subtracted from the loss.
    pub entropy_coef: f64,
    /// The share of tokens, those of the highest entropy, that the policy term and the entropy bonus keep. 1: all.
    pub top_entropy_quantile: f64,
    /// The largest mean of (sampler - current) log-probabilities at which a completion with a negative advantage is
    /// kept. `None`: no limit.
    pub off_policy_mask_threshold: Option<f64>,
    /// Whether completions that reached the maximum length are excluded.
    pub mask_truncated_completions: bool,
    /// The maximum number of tokens of a completion, which `dr_grpo` divides by. `None`: valid for other loss types.
    pub max_completion_length: Option<usize>,
    /// The correction for a sampler with other log-probabilities. `None`: no correction.
    pub sampler_correction: Option<SamplerCorrection>,
}

impl Default for PolicyLoss {
    fn default() -> PolicyLoss {
        PolicyLoss {
            loss_type: LossType::default(),
            level: ImportanceSamplingLevel::default(),
            epsilon: 0.2,
            epsilon_high: None,
            delta: None,
            beta: 0.0,
            bias_corrected_kl: true,
            entropy_coef: 0.0,
            top_entropy_quantile: 1.0,
            off_policy_mask_threshold: None,
            mask_truncated_completions: false,
            max_completion_length: None,
            sampler_correction: None,
        }
    }
}

impl PolicyLoss {
    /// Checks the options.
    ///
    /// # Errors
    /// [`RlError::Option`] names the field, the valid values and the value found.
    pub fn check(&self) -> Result<()> {
        let valid = |ok: bool, field, want: &str, got: &dyn fmt::Debug| {
            if ok {
                Ok(())
            } else {
                Err(RlError::Option { field, want: want.into(), got: format!("{got:?}") })
            }
        };
        let not_negative = "a number that is not negative";
        valid(self.epsilon >= 0.0, "epsilon", not_negative, &self.epsilon)?;
        valid(self.epsilon_high() >= 0.0, "epsilon_high", not_negative, &self.epsilon_high())?;
        if let Some(delta) = self.delta {
            valid(delta > 0.0, "delta", "a positive number", &delta)?;
            let want = "no value with a loss type that is not clipped by epsilon";
            valid(self.loss_type.is_clipped(), "delta", want, &delta)?;
        }
        let finite = "a finite number that is not negative";
        let is_finite = |x: f64| x >= 0.0 && x.is_finite();
        valid(is_finite(self.beta), "beta", finite, &self.beta)?;
        valid(is_finite(self.entropy_coef), "entropy_coef", finite, &self.entropy_coef)?;
        let quantile = self.top_entropy_quantile;
        valid((0.0..=1.0).contains(&quantile), "top_entropy_quantile", "a number from 0 to 1", &quantile)?;
        if let Some(threshold) = self.off_policy_mask_threshold {
            valid(!threshold.is_nan(), "off_policy_mask_threshold", "a number", &threshold)?;
        }
        let length = self.max_completion_length;
        valid(length != Some(0), "max_completion_length", "at least 1 token", &length)?;
        let needs_length = self.loss_type == LossType::DrGrpo;
        valid(length.is_some() || !needs_length, "max_completion_length", "a number with dr_grpo", &length)?;
        let Some(correction) = self.sampler_correction else { return Ok(()) };
        let SamplerCorrection { mode, min, max } = correction;
        let bound = |x: Option<f64>| x.is_none_or(|x| x >= 0.0);
        valid(bound(min), "sampler_correction.min", not_negative, &min)?;
        valid(bound(max), "sampler_correction.max", not_negative, &max)?;
        if let (Some(min), Some(max)) = (min, max) {
            valid(min < max, "sampler_correction.min", "less than sampler_correction.max", &min)?;
        }
        let bounded = mode.is_mask() || min.is_some() || max.is_some();
        valid(bounded, "sampler_correction", "a bound to truncate at", &correction)
    }

    /// The upper clip: `epsilon_high`, or `epsilon` if it is not set.
    pub fn epsilon_high(&self) -> f64 {
        self.epsilon_high.unwrap_or(self.epsilon)
    }

    /// Whether every row needs the entropies of its tokens. Otherwise they are used for the metric only.
    pub fn needs_entropy(&self) -> bool {
        self.entropy_coef != 0.0 || self.top_entropy_quantile < 1.0
    }

    /// Whether every row needs the log-probabilities of the sampler. The off-policy mask uses the old ones instead if
    /// a row has none.
    pub fn needs_sampler(&self) -> bool {
        self.sampler_correction.is_some()
    }

    /// Whether every row needs the log-probabilities of the reference model.
    pub fn needs_reference(&self) -> bool {
        self.beta != 0.0
    }
}
