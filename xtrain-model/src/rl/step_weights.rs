//! The weights of some of the completions of a step, from the sizes of the whole step.
use xtrain_tensor::faults::{self, Fault};

use super::error::{Result, RlError};
use super::options::{LossType, PolicyLoss};
use super::row::PolicyRow;
use super::row_output::RowOutput;

/// The sizes of an optimizer step that its divisors are formed from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSizes {
    /// Number of completions.
    pub rows: usize,
    /// Number of tokens of the loss mask, without those of excluded truncated completions.
    pub tokens: usize,
    /// The number of tokens that `dapo`, `cispo` and `vespo` divide by; see [`PolicyLoss::evaluate_part`].
    pub step_tokens: f64,
}

/// The weights of completions, per token.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyWeights {
    /// As [`PolicyOutput::weights`](super::PolicyOutput::weights).
    pub weights: Vec<Vec<f64>>,
    /// As [`PolicyOutput::bonus`](super::PolicyOutput::bonus).
    pub bonus: Vec<Vec<f64>>,
}

impl PolicyLoss {
    /// The sizes of the step of `rows`: every completion of the step. Reads their masks and whether they are
    /// truncated.
    pub fn sizes(&self, rows: &[PolicyRow<'_>], step_tokens: f64) -> StepSizes {
        let count = |row: &PolicyRow<'_>| {
            let masked_too = faults::on(Fault::MaskedTokensCounted);
            if masked_too { row.mask.len() } else { self.tokens(row).len() }
        };
        StepSizes { rows: rows.len(), tokens: rows.iter().map(count).sum(), step_tokens }
    }

    /// The weights of some of the completions of a step of these sizes. They have the bits of
    /// [`PolicyLoss::evaluate_part`] over all completions.
    ///
    /// # Errors
    /// As [`PolicyLoss::evaluate_part`]; the index of a completion is that in `rows`. [`RlError::Option`] if
    /// [`PolicyLoss::needs_whole_step`].
    pub fn weights(&self, rows: &[PolicyRow<'_>], sizes: &StepSizes) -> Result<PolicyWeights> {
        self.check_step(rows, sizes)?;
        if self.needs_whole_step() {
            let want = "1 for weights of a part of a step, because the threshold is that of the step".into();
            let got = self.top_entropy_quantile.to_string();
            return Err(RlError::Option { field: "top_entropy_quantile", want, got });
        }
        let outputs = self.row_outputs(rows, None)?;
        Ok(self.scaled(rows, &outputs, &self.divisors(&outputs, sizes), sizes.tokens))
    }

    /// Whether a weight depends on the current values of other completions: on the entropy threshold of the step.
    pub fn needs_whole_step(&self) -> bool {
        self.top_entropy_quantile < 1.0
    }

    /// Whether the weights and bonuses of a completion are all +0 whatever its current values are.
    pub fn ignores(&self, row: &PolicyRow<'_>) -> bool {
        let is_weighted = row.advantage != 0.0 || self.needs_reference() || self.entropy_coef != 0.0;
        !is_weighted || self.tokens(row).is_empty()
    }

    pub(super) fn check_step(&self, rows: &[PolicyRow<'_>], sizes: &StepSizes) -> Result<()> {
        self.check()?;
        let step_tokens = sizes.step_tokens;
        if !(step_tokens > 0.0 && step_tokens.is_finite()) {
            let (want, got) = ("a positive number".into(), step_tokens.to_string());
            return Err(RlError::Option { field: "step_tokens", want, got });
        }
        rows.iter().enumerate().try_for_each(|(completion, row)| row.check(completion, self))
    }

    pub(super) fn row_outputs(
        &self,
        rows: &[PolicyRow<'_>],
        threshold: Option<f64>,
    ) -> Result<Vec<RowOutput>> {
        let output = |(completion, row)| self.row_output(completion, row, threshold);
        rows.iter().enumerate().map(output).collect()
    }

    /// The divisor of each row.
    pub(super) fn divisors(&self, outputs: &[RowOutput], sizes: &StepSizes) -> Vec<f64> {
        let batch = sizes.rows as f64;
        let divisor = |output: &RowOutput| match self.loss_type {
            LossType::Grpo | LossType::Sapo => output.tokens.len().max(1) as f64 * batch,
            LossType::Bnpo => sizes.tokens.max(1) as f64,
            LossType::DrGrpo => batch * self.max_completion_length.unwrap_or(1) as f64,
            LossType::Dapo | LossType::Cispo | LossType::Vespo => sizes.step_tokens,
            LossType::Luspo => batch,
        };
        outputs.iter().map(divisor).collect()
    }

    /// The weights of `rows`. `active` is the number of tokens of the step that the entropy bonus acts on.
    pub(super) fn scaled(
        &self,
        rows: &[PolicyRow<'_>],
        outputs: &[RowOutput],
        divisors: &[f64],
        active: usize,
    ) -> PolicyWeights {
        let mut weights: Vec<Vec<f64>> = rows.iter().map(|row| vec![0.0; row.logp.len()]).collect();
        let mut bonus = weights.clone();
        let token_bonus = self.entropy_coef / active.max(1) as f64;
        for (at, output) in outputs.iter().enumerate() {
            for (i, &t) in output.tokens.iter().enumerate() {
                weights[at][t] = 0.0 - output.gradient[i] / divisors[at];
                if self.entropy_coef != 0.0 && output.high_entropy[i] {
                    bonus[at][t] = token_bonus;
                }
            }
        }
        PolicyWeights { weights, bonus }
    }
}
