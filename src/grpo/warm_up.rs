//! The first passes of a run: later ones need no more memory.
use std::sync::Arc;

use serde_json::Map;

use super::batch::{Group, Prompt, Sample, samples};
use super::examples::Weighted;
use super::{Error, Grpo, GrpoObserver, GrpoPhase};
use crate::decode::{Completion, FinishReason};
use crate::model::{TrainingExample, objective};

impl Grpo<'_> {
    /// Computes the gradient of the largest micro-batch that a step can have, and forward passes over 1, 2, 4, ... rows up
    /// to one for each completion, and discards the results. A run without enough memory fails here and not in a later
    /// step, and later passes find their memory in the free lists.
    pub(super) fn warm_up(&mut self, observer: &mut dyn GrpoObserver) -> Result<(), Error> {
        observer.enter(GrpoPhase::Update)?;
        let section = self.section;
        let prompt = self.prompts.longest()?;
        let context = self.trainer.model.config().max_positions.saturating_sub(prompt);
        let new = self.rollout.max_new.min(context).max(1);
        let prompt = Arc::new(Prompt { text: String::new(), ids: vec![0; prompt], columns: Map::new() });
        let group = |_| Group {
            prompt_id: 0,
            prompt: prompt.clone(),
            samples: (0..section.num_generations).map(|at| self.completion(at, new)).collect(),
        };
        let groups: Vec<Group> =
            (0..section.prompts_per_step / section.steps_per_generation).map(group).collect();
        let weighted =
            |(group, sample)| Weighted { group, sample, advantage: 0.0, reference: None, kept: &[] };
        let completions: Vec<Weighted<'_>> = samples(&groups).map(weighted).collect();
        let examples = &self.updater.examples;
        let parts: Vec<_> = examples.parts(&completions).collect();
        if let Some((_, largest)) = examples.passes(&completions, &parts).next() {
            self.trainer.gradient(&largest, self.updater.processing(), examples.per_pass())?;
        }
        let powers = std::iter::successors(Some(1usize), |rows| rows.checked_mul(2));
        for rows in powers.take_while(|&rows| rows < 2 * completions.len()) {
            let single = vec![TrainingExample::window(&[0, 0], 0.0); rows];
            objective::values(&self.trainer.model, &single, self.updater.processing())?;
        }
        Ok(())
    }

    /// Completion `at` of a group, with `len` tokens: the digits of `at`, the lowest first. So few completions begin
    /// with the same tokens.
    fn completion(&self, at: usize, len: usize) -> Sample {
        let vocab = self.trainer.model.config().vocab;
        let mut rest = at;
        let mut digit = || (rest % vocab, rest /= vocab).0 as u32;
        let turn = Completion {
            index: 0,
            id: 0,
            prompt_len: 0,
            tokens: (0..len).map(|_| digit()).collect(),
            logprobs: vec![0.0; len],
            processed_logprobs: vec![0.0; len],
            finish_reason: FinishReason::Length,
        };
        Sample::new(turn, self.tokenizer)
    }
}
