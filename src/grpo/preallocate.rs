//! The first passes of a run: later ones seldom need more memory.
use std::iter::successors;
use std::sync::Arc;

use super::batch::{Group, Prompt, Sample, samples};
use super::examples::Weighted;
use super::{Error, Grpo, GrpoObserver, GrpoPhase};
use crate::decode::{Completion, FinishReason};
use crate::model::{TrainingExample, objective};
use crate::tensor::faults::{self, Fault};

impl Grpo<'_> {
    /// Computes the gradient of a micro-batch of the longest prompt with the longest completions, and forward passes
    /// over 1, 2, 4, ... rows, and discards the results. A run without enough memory for its updates fails here and not
    /// in a later step, and later passes reuse its memory. [`Error::Interrupted`] if the observer stops the run between
    /// two passes.
    pub(super) fn preallocate(&mut self, observer: &mut dyn GrpoObserver) -> Result<(), Error> {
        observer.enter(GrpoPhase::Preallocate)?;
        let section = self.section;
        let prompt = self.prompts.longest()?;
        let context = self.trainer.model.config().max_positions.saturating_sub(prompt.ids.len());
        let len = self.rollout.max_new.min(context).max(1);
        let group = Group {
            prompt_id: 0,
            prompt: prompt.clone(),
            samples: (0..section.num_generations).map(|at| self.completion(&prompt, at, len)).collect(),
        };
        // a copy for each group of a step: completions share an example only within theirs
        let groups = vec![group; section.prompts_per_step / section.steps_per_generation];
        let merged = faults::on(Fault::PreallocationMergesGroups).then(|| &groups[0]);
        let weighted = |(group, sample)| {
            let group = merged.unwrap_or(group);
            Weighted { group, sample, advantage: 0.0, reference: None, kept: &[] }
        };
        let completions: Vec<Weighted<'_>> = samples(&groups).map(weighted).collect();
        let (examples, processing) = (&self.updater.examples, self.updater.processing());
        let parts: Vec<_> = examples.parts(&completions).collect();
        // the largest pass of each shard
        let shards = self.trainer.shards;
        let count = parts.len().min(shards * parts.len().div_ceil(shards).min(examples.per_pass()));
        let passes = examples.passes(&completions, &parts[..count]);
        let largest: Vec<TrainingExample> = passes.flat_map(|(_, examples)| examples).collect();
        self.trainer.gradient(&largest, processing, examples.per_pass())?;
        let powers = successors(Some(1usize), |rows| rows.checked_mul(2));
        let stop = |observer: &mut dyn GrpoObserver| match observer.stop() {
            true => Err(Error::Interrupted),
            false => Ok(()),
        };
        for rows in powers.take_while(|&rows| rows <= completions.len()) {
            stop(observer)?;
            let single = vec![TrainingExample::window(&[prompt.ids[0]; 2], 0.0); rows];
            objective::values(&self.trainer.model, &single, processing)?;
        }
        stop(observer)
    }

    /// Completion `at` of a group, with `len` tokens of the prompt: the digits of `at`, the lowest first, so that few
    /// completions begin with the same tokens.
    fn completion(&self, prompt: &Arc<Prompt>, at: usize, len: usize) -> Sample {
        let mut ids = prompt.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        let mut rest = at;
        let mut digit = || (ids[rest % ids.len()], rest /= ids.len()).0;
        let turn = Completion {
            index: 0,
            id: 0,
            prompt_len: 0,
            tokens: (0..len).map(|_| digit()).collect(),
            logprobs: vec![0.0; len],
            processed_logprobs: vec![0.0; len],
            top_logprobs: Vec::new(),
            finish_reason: FinishReason::Length,
        };
        Sample::new(turn, &[], self.tokenizer)
    }
}
