//! The value of a policy loss and its weights.
use xtrain_tensor::faults::{self, Fault};

use super::error::{Result, RlError};
use super::options::{LossType, PolicyLoss};
use super::row::{PolicyOutput, PolicyRow};
use super::row_output::RowOutput;
use super::stats::{quantile, sum};

impl PolicyLoss {
    /// The loss of a step and its gradients. `rows` holds every completion of the step.
    ///
    /// Formulas and the order of sums: docs/numerics.md, section 8. `dapo`, `cispo` and `vespo` divide by the number
    /// of tokens of the step.
    ///
    /// # Errors
    /// As [`PolicyLoss::check`]; [`RlError::Length`] and [`RlError::Missing`] for a row with a list of another length
    /// or without a required list; [`RlError::NotFinite`] for an operand at a token of the loss mask, a term or a
    /// gradient that is not finite.
    pub fn evaluate(&self, rows: &[PolicyRow<'_>]) -> Result<PolicyOutput> {
        let tokens: usize = rows.iter().map(|row| self.tokens(row).len()).sum();
        self.evaluate_part(rows, tokens.max(1) as f64)
    }

    /// [`PolicyLoss::evaluate`] for one of several optimizer steps over a generation batch. `dapo`, `cispo` and
    /// `vespo` divide by `step_tokens`, the number of tokens of the generation batch divided by the number of steps.
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
}
