//! Evaluation on held-out prompts.
use std::sync::Arc;

use super::batch::{Group, Prompt, samples};
use super::metrics::{StepMetrics, lengths};
use super::rollout::{GroupRequest, RolloutModel, RolloutOptions};
use super::score::Scorer;
use super::turns::{Progress, generate};
use super::{Error, Grpo, GrpoObserver, GrpoPhase};
use crate::decode::SampleOptions;
use crate::model::tokenizer::Tokenizer;
use crate::tensor::faults::{self, Fault};

/// The ids of evaluation completions have this bit.
const EVALUATION: u64 = 1 << 63;

/// The rewards on held-out prompts. `None`: no reward applies to any completion.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldOut {
    /// Mean reward of sampled completions.
    pub sampled: Option<f64>,
    /// Mean reward of greedy completions.
    pub greedy: Option<f64>,
    /// Fraction of prompts with a sampled completion whose reward is at least 1.
    pub pass_at_k: f64,
    /// Mean of each reward of the sampled completions, in f64 and in the order of the prompts, with its name. Rewards that
    /// apply to no completion are left out.
    pub rewards: Vec<(String, f64)>,
    /// The lengths of the sampled completions, see [`lengths`].
    pub lengths: [(&'static str, f64); 7],
}

/// Completes every held-out prompt once greedily and `k` times with the sampling options of the run.
///
/// # Errors
/// As [`generate`].
pub fn evaluate(
    RolloutModel { model, memory, comm }: RolloutModel<'_>,
    tokenizer: &Tokenizer,
    prompts: &[GroupRequest],
    k: usize,
    options: &RolloutOptions,
    scorer: &mut Scorer,
    progress: &mut dyn FnMut(Progress) -> Result<(), Error>,
) -> Result<HeldOut, Error> {
    let requests = |size: usize| {
        let request = |(i, p): (usize, &GroupRequest)| {
            let shared = faults::on(Fault::HeldOutPromptsShareNumbers);
            let ids = if shared { 1 } else { size as u64 };
            let first_id = EVALUATION | ((p.first_id + i as u64) * ids);
            GroupRequest { first_id, size, ..p.clone() }
        };
        prompts.iter().enumerate().map(request).collect::<Vec<_>>()
    };
    let greedy = RolloutOptions { sampling: SampleOptions::greedy(), ..options.clone() };
    let (greedy_groups, greedy) =
        generate(RolloutModel { model, memory, comm }, tokenizer, requests(1), &greedy, scorer, progress)?;
    let (sampled, scores) =
        generate(RolloutModel { model, memory, comm }, tokenizer, requests(k), options, scorer, progress)?;
    let of_greedy = faults::on(Fault::HeldOutDetailsOfGreedy);
    let (groups, detailed) = if of_greedy { (&greedy_groups, &greedy) } else { (&sampled, &scores) };
    let function = |(at, name)| {
        let values: Vec<Option<f64>> = detailed.each.iter().map(|row| row[at]).collect();
        Some((name, mean(&values)?))
    };
    Ok(HeldOut {
        sampled: mean(&scores.total),
        greedy: mean(&greedy.total),
        pass_at_k: pass_at_k(&sampled_groups(&sampled, &scores.total).collect::<Vec<_>>()),
        rewards: scorer.names().into_iter().enumerate().filter_map(function).collect(),
        lengths: lengths(groups),
    })
}

impl Grpo<'_> {
    /// Evaluates on the held-out prompts. Only the evaluation of step 0 can be interrupted: a later one belongs to a
    /// step whose weights are updated and whose line of metrics is not written yet.
    pub(super) fn evaluate(
        &mut self,
        metrics: &mut StepMetrics,
        observer: &mut dyn GrpoObserver,
    ) -> Result<(), Error> {
        if self.held_out.is_empty() || self.section.eval_every == 0 {
            return Ok(());
        }
        observer.enter(GrpoPhase::Evaluate)?;
        let step = self.trainer.step_number();
        let first_id = step * self.held_out.len() as u64;
        let request = |(at, prompt): (usize, &Arc<Prompt>)| GroupRequest {
            prompt_id: at as u64,
            prompt: prompt.clone(),
            first_id,
            size: 1,
        };
        let prompts: Vec<GroupRequest> = self.held_out.iter().enumerate().map(request).collect();
        let HeldOut { sampled, greedy, pass_at_k, rewards, lengths } = evaluate(
            RolloutModel {
                model: &self.trainer.model,
                memory: &mut self.kv_memory,
                comm: &*self.processes.comm,
            },
            self.tokenizer,
            &prompts,
            self.section.eval_samples,
            &self.rollout,
            self.scorer,
            &mut |progress| match progress {
                Progress::Generated if !observer.generated() && step == 0 => Err(Error::Interrupted),
                _ => Ok(()),
            },
        )?;
        let means = [("eval/reward_sampled", sampled), ("eval/reward_greedy", greedy)];
        metrics.extend(means.into_iter().filter_map(|(name, mean)| Some((name.to_string(), mean?))));
        metrics.push("eval/pass_at_k", pass_at_k);
        metrics.extend(rewards.into_iter().map(|(name, mean)| (format!("eval/rewards/{name}/mean"), mean)));
        metrics.extend(lengths.map(|(name, value)| (format!("eval/{name}"), value)));
        Ok(())
    }
}

/// The fraction of groups with a reward of at least 1. A group without a reward counts as one that fails.
fn pass_at_k(groups: &[Vec<f64>]) -> f64 {
    let passed = groups.iter().filter(|group| group.iter().any(|&r| r >= 1.0)).count();
    passed as f64 / groups.len().max(1) as f64
}

/// The rewards of each group, in the order of the groups.
fn sampled_groups<'a>(groups: &'a [Group], total: &'a [Option<f64>]) -> impl Iterator<Item = Vec<f64>> + 'a {
    debug_assert_eq!(samples(groups).count(), total.len());
    let mut total = total.iter();
    groups.iter().map(move |group| total.by_ref().take(group.samples.len()).flatten().copied().collect())
}

fn mean(rewards: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = rewards.iter().flatten().copied().collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_without_a_reward_counts_in_pass_at_k() {
        let groups = [vec![0.0, 1.0], vec![], vec![0.999], vec![1.5, 0.0]];
        assert_eq!(pass_at_k(&groups), 0.5);
        assert_eq!(pass_at_k(&[]), 0.0);
    }

    #[test]
    fn a_completion_without_a_reward_is_not_in_the_mean() {
        assert_eq!(mean(&[Some(1.0), None, Some(0.5)]), Some(0.75));
        assert_eq!(mean(&[None, None]), None);
    }
}
