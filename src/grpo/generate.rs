//! The generation batch of a step: rollouts, rewards, advantages, replaced groups.
use super::batch::{Batch, Group};
use super::rollout::{GroupRequest, RolloutModel};
use super::scores::Scores;
use super::turns::{self, Progress};
use super::{Error, Grpo, GrpoObserver, GrpoPhase};
use crate::model::rl::{AdvantageOptions, advantages};
use crate::rollout_file::policy_digest;
use crate::tensor::faults::{self, Fault};

/// The ids of completions of replaced groups have this bit.
const REPLACEMENTS: u64 = 1 << 62;

impl Grpo<'_> {
    /// Generates and scores the batch of the next step.
    pub(super) fn generate(&mut self, observer: &mut dyn GrpoObserver) -> Result<Batch, Error> {
        let section = self.section;
        let number = self.trainer.step_number() / section.steps_per_batch() as u64;
        let policy = policy_digest(&self.trainer.model)?;
        let (b, g) = (section.prompts_per_step as u64, section.num_generations);
        let request = |slot: u64| {
            let (prompt_id, prompt) = self.prompts.at(number * b + slot)?;
            Ok(GroupRequest { prompt_id, prompt, first_id: (number * b + slot) * g as u64, size: g })
        };
        let requests = (0..b).map(request).collect::<Result<_, Error>>()?;
        let (mut groups, mut scores) = self.roll(requests, observer)?;
        if faults::on(Fault::RewardsShuffled) {
            scores.shuffle(self.trainer.step_number());
        }
        let options = AdvantageOptions { weights: self.scorer.weights()?, ..self.advantages.clone() };
        let mut result = advantages(&scores.each, &options)?;
        let (mut discarded, mut discarded_scores) = (Vec::new(), Scores::default());
        for round in 0..section.resample_groups as u64 {
            let flat: Vec<usize> = (0..groups.len()).filter(|&at| !result.group_has_spread[at]).collect();
            if flat.is_empty() {
                break;
            }
            let request = |&slot: &usize| {
                let (prompt_id, prompt) = self.prompts.replacement(number, round, slot as u64)?;
                let first_id = REPLACEMENTS | (((number * 256 + round) * b + slot as u64) * g as u64);
                Ok(GroupRequest { prompt_id, prompt, first_id, size: g })
            };
            let requests = flat.iter().map(request).collect::<Result<_, Error>>()?;
            let (fresh, fresh_scores) = self.roll(requests, observer)?;
            for (i, (slot, group)) in flat.into_iter().zip(fresh).enumerate() {
                discarded.push(std::mem::replace(&mut groups[slot], group));
                let at = if faults::on(Fault::ReplacementsShareRewards) { 0 } else { i };
                discarded_scores.append(scores.replace(slot * g, fresh_scores.part(at * g..(at + 1) * g)));
            }
            result = advantages(&scores.each, &options)?;
        }
        let step = self.trainer.step_number() + 1;
        Ok(Batch { step, groups, discarded, discarded_scores, scores, advantages: result, policy })
    }

    fn roll(
        &mut self,
        requests: Vec<GroupRequest>,
        observer: &mut dyn GrpoObserver,
    ) -> Result<(Vec<Group>, Scores), Error> {
        let mut progress = |progress| match progress {
            Progress::Rollout => observer.enter(GrpoPhase::Rollout),
            Progress::Generated if !observer.generated() => Err(Error::Interrupted),
            Progress::Generated => Ok(()),
            Progress::Reward => observer.enter(GrpoPhase::Reward),
        };
        let (model, memory) = (&self.trainer.model, &mut self.kv_memory);
        let sampler = RolloutModel { model, memory, comm: &*self.processes.comm };
        turns::generate(sampler, self.tokenizer, requests, &self.rollout, self.scorer, &mut progress)
    }
}
