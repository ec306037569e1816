//! The metrics of an optimizer step.
use super::Grpo;
use super::agreement::Agreement;
use super::batch::Batch;
use super::metrics::{StepMetrics, lengths};
use super::update::UpdateReport;
use crate::model::rl::Advantages;

impl Grpo<'_> {
    /// The metrics of an optimizer step, and those of the batch on the line of its first step.
    pub(super) fn push_metrics(
        &self,
        metrics: &mut StepMetrics,
        batch: Option<&Batch>,
        report: &UpdateReport,
    ) {
        metrics.push("loss", report.loss);
        metrics.push("grad_norm", f64::from(report.step.grad_norm));
        metrics.push("learning_rate", report.step.learning_rate);
        metrics.push("num_tokens", report.step.target_tokens as f64);
        if let Some(batch) = batch {
            metrics.extend(lengths(&batch.groups).map(|(name, value)| (name.to_string(), value)));
            let Advantages { reward, functions, frac_reward_zero_std, .. } = &batch.advantages;
            for (name, function) in self.scorer.names().iter().zip(functions) {
                metrics.extend(function.mean.map(|mean| (format!("rewards/{name}/mean"), mean)));
                metrics.extend(function.std.map(|std| (format!("rewards/{name}/std"), std)));
            }
            metrics.extend(reward.mean.map(|mean| ("reward".to_string(), mean)));
            metrics.extend(reward.std.map(|std| ("reward_std".to_string(), std)));
            metrics.push("frac_reward_zero_std", *frac_reward_zero_std);
            metrics.push("discarded_groups", batch.discarded.len() as f64);
        }
        metrics.extend(report.metrics.named().into_iter().map(|(name, value)| (name.to_string(), value)));
        if metrics.get("entropy").is_none() {
            metrics.extend(report.entropy.map(|entropy| ("entropy".to_string(), entropy)));
        }
        if let Some(Agreement { tokens, sum, max }) = report.agreement {
            metrics.push("sampling/sampling_logp_difference/mean", sum / tokens as f64);
            metrics.push("sampling/sampling_logp_difference/max", max);
            metrics.push("sampling/compared_tokens", tokens as f64);
        }
        metrics.push("trained_completions", report.trained as f64);
        metrics.push("trained_rows", report.rows as f64);
    }
}
