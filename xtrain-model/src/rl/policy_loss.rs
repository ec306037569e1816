//! The value of a policy loss and its weights.
use super::error::{Result, RlError};
use super::options::PolicyLoss;
use super::row::{PolicyOutput, PolicyRow};
use super::row_output::RowOutput;
use super::stats::{quantile, sum};
use super::step_weights::PolicyWeights;

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
        let sizes = self.sizes(rows, step_tokens);
        self.check_step(rows, &sizes)?;
        let outputs = self.row_outputs(rows, self.entropy_threshold(rows))?;
        let divisors = self.divisors(&outputs, &sizes);
        let policy_loss = sum(outputs.iter().zip(&divisors).map(|(output, divisor)| output.sum / divisor));
        let active: usize = outputs.iter().map(|o| o.high_entropy.iter().filter(|&&kept| kept).count()).sum();
        let PolicyWeights { weights, bonus } = self.scaled(rows, &outputs, &divisors, active);
        let loss = if self.entropy_coef == 0.0 {
            policy_loss
        } else {
            policy_loss - self.entropy_coef * (active_entropy(rows, &outputs) / active.max(1) as f64)
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
}

/// The sum of the entropies of all kept tokens.
fn active_entropy(rows: &[PolicyRow<'_>], outputs: &[RowOutput]) -> f64 {
    let of_row = |(row, output): (&PolicyRow<'_>, &RowOutput)| -> Vec<f64> {
        let kept = output.tokens.iter().zip(&output.high_entropy).filter(|(_, kept)| **kept);
        kept.map(|(&t, _)| row.entropy.map_or(0.0, |entropy| entropy[t])).collect()
    };
    sum(rows.iter().zip(outputs).flat_map(of_row))
}
