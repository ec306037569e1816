//! The loop: rollouts, rewards, advantages, updates.
use std::path::PathBuf;
use std::sync::Arc;

use super::Error;
use super::batch::{Batch, Prompt, sampled_tokens, samples};
use super::examples::Weighted;
use super::exchange;
use super::from_config;
use super::metrics::StepMetrics;
use super::prompts::PromptSource;
use super::record;
use super::rollout::RolloutOptions;
use super::score::Scorer;
use super::update::{Policy, StepInput, Updater};
use crate::config::GrpoSection;
use crate::decode::{EngineOptions, KvMemory};
use crate::model::checkpoint::{CheckpointDir, CheckpointError};
use crate::model::export::ExportSource;
use crate::model::rl::AdvantageOptions;
use crate::model::store::{self, RunState};
use crate::model::tokenizer::Tokenizer;
use crate::model::{self, Model, Processes, Trainer};
use crate::rollout_file::policy_digest;
use crate::run::{self, JsonLines, RunDir};
use crate::tensor::faults::{self, Fault};
use crate::tensor::ops::KeptSet;
use crate::training::End;

/// A part of a step, for timings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GrpoPhase {
    /// The passes that allocate memory before the first step.
    Preallocate,
    /// Generating completions.
    Rollout,
    /// Computing rewards.
    Reward,
    /// Log-probabilities under the reference model.
    Reference,
    /// Gradient and optimizer.
    Update,
    /// Evaluation on held-out prompts.
    Evaluate,
    /// Comparison with the training forward pass.
    Verify,
    /// Writing files.
    Save,
}

/// Receives the progress of a run. An error of a method ends the run; [`Error::Other`] is for those of the observer. By
/// default, an observer goes on and ignores what it is told, warnings included.
pub trait GrpoObserver {
    /// A phase begins.
    fn enter(&mut self, _phase: GrpoPhase) -> Result<(), Error> {
        Ok(())
    }

    /// A turn of a completion has ended. Returns `false` to stop the run.
    fn generated(&mut self) -> bool {
        true
    }

    /// A step has finished.
    fn step(&mut self, metrics: &StepMetrics) -> Result<(), Error>;

    /// A generation batch has its rewards and advantages.
    fn batch(&mut self, _batch: &Batch) {}

    /// A checkpoint was written durably.
    fn saved(&mut self, _path: PathBuf, _not_pruned: Option<CheckpointError>) {}

    /// A message.
    fn note(&mut self, _text: &str) {}

    /// Whether the run should save and stop.
    fn stop(&mut self) -> bool {
        false
    }
}

/// A run of reinforcement learning that is ready to start or to resume.
pub struct Grpo<'a> {
    /// `[grpo]` of the configuration.
    pub section: &'a GrpoSection,
    /// The seed.
    pub seed: u64,
    /// The model and its optimizer.
    pub trainer: &'a mut Trainer,
    /// The reference model of the KL term.
    pub reference: Option<Model>,
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The training prompts.
    pub prompts: &'a PromptSource<'a>,
    /// The held-out prompts.
    pub held_out: &'a [Arc<Prompt>],
    /// The rewards.
    pub scorer: &'a mut Scorer,
    /// The rollouts.
    pub rollout: RolloutOptions,
    /// The memory of the KV cache, which all rollouts of the run use.
    pub kv_memory: KvMemory,
    /// The advantages. The weights are those of the scorer.
    pub advantages: AdvantageOptions,
    /// The updates.
    pub updater: Updater,
    /// The files that it writes. `None`: the first of several processes writes them.
    pub files: Option<GrpoFiles<'a>>,
    /// The processes of the run.
    pub processes: Processes,
}

/// The files that a run writes.
pub struct GrpoFiles<'a> {
    /// The run directory.
    pub run: &'a RunDir,
    /// The checkpoints.
    pub checkpoints: &'a CheckpointDir,
    /// The checkpoints of a reference model that is updated. `None`: it stays as it is.
    pub reference_checkpoints: Option<&'a CheckpointDir>,
    /// The configuration that checkpoints record, see [`config::record`](crate::config::record).
    pub record: &'a str,
    /// `metrics.jsonl`.
    pub metrics: &'a mut JsonLines,
}

impl<'a> Grpo<'a> {
    /// A run of one process with the settings of `section`, without a reference model, held-out prompts, a constraint
    /// and files.
    ///
    /// `section.steps` counts from step 0 of `trainer`, whose optimizer and schedule stay as they are; those of the
    /// section are [`from_config::optim_config`] and [`from_config::schedule`]. Keys of the section that name tasks,
    /// prompts, reward programs, `reward_weights`, constraints and files are not read. If `section.beta` is above 0, set
    /// [`Grpo::reference`]; without it, [`Grpo::run`] returns an error.
    pub fn new(
        section: &'a GrpoSection,
        seed: u64,
        trainer: &'a mut Trainer,
        tokenizer: &'a Tokenizer,
        prompts: &'a PromptSource<'a>,
        scorer: &'a mut Scorer,
    ) -> Grpo<'a> {
        Grpo {
            section,
            seed,
            trainer,
            reference: None,
            tokenizer,
            prompts,
            held_out: &[],
            scorer,
            rollout: from_config::rollout_options(section, seed, EngineOptions::default()),
            kv_memory: KvMemory::default(),
            advantages: from_config::advantage_options(section),
            updater: from_config::updater(section),
            files: None,
            processes: Processes::default(),
        }
    }
}

impl Grpo<'_> {
    /// Runs until the last step, or until the observer stops the run. Weights, metrics and rollouts are functions of
    /// the configuration, the initial weights and the rewards only: they do not depend on interruptions, threads,
    /// processes or micro-batches. With several processes, each calls it with the same state: each generates the
    /// completions of a part of the prompts and computes [`Trainer::shards`] / R shards of a step; the observer of the
    /// first one decides when it stops.
    ///
    /// # Errors
    /// [`Error`]; the last checkpoint is kept. Before the first step: [`Error::Config`] for an invalid section,
    /// [`Error::PromptLength`] for a prompt of a list, [`Error::NoReference`].
    pub fn run(&mut self, observer: &mut dyn GrpoObserver) -> Result<End, Error> {
        self.check()?;
        self.trainer.join(&self.processes)?;
        let end = self.steps(observer).map_err(|error| self.at_step(error))?;
        self.trainer.leave()?;
        Ok(end)
    }

    /// Checks what a caller can set wrongly.
    fn check(&self) -> Result<(), Error> {
        self.section.validate()?;
        let context = self.trainer.model.config().max_positions.saturating_sub(1);
        self.prompts.check_lengths(self.section.max_prompt_length.min(context))?;
        match self.section.beta {
            beta if beta > 0.0 && self.reference.is_none() && !faults::on(Fault::ReferenceNotRequired) => {
                Err(Error::NoReference { beta })
            }
            _ => Ok(()),
        }
    }

    /// `error` with the number of the step that was not completed.
    fn at_step(&self, error: Error) -> Error {
        let step = self.trainer.step_number() + 1;
        match error {
            Error::Model(error) => Error::Model(error.at_step(step)),
            Error::Decode(error) => Error::Rollout { step, error },
            other => other,
        }
    }

    fn steps(&mut self, observer: &mut dyn GrpoObserver) -> Result<End, Error> {
        let last = self.section.steps as u64;
        let mut stopped = false;
        if self.section.preallocate && self.trainer.step_number() < last {
            match self.preallocate(observer) {
                Err(Error::Interrupted) => stopped = true,
                preallocated => preallocated?,
            }
        }
        if self.trainer.step_number() == 0 {
            self.save(observer)?;
        }
        if exchange::agreed(&*self.processes.comm, stopped)? {
            return Ok(End::Stopped);
        }
        if self.trainer.step_number() == 0 {
            let mut metrics = StepMetrics::new(0);
            match self.evaluate(&mut metrics, observer) {
                // Its line is not written: a resume evaluates step 0 again.
                Err(Error::Interrupted) => return Ok(End::Stopped),
                evaluated => evaluated?,
            }
            self.log(&metrics, observer)?;
        }
        let mut saved = self.trainer.step_number();
        loop {
            let step = self.trainer.step_number();
            let stop = exchange::agreed(&*self.processes.comm, step < last && observer.stop())?;
            let outcome = if step == last || stop { Ok(()) } else { self.batch(observer) };
            let now = self.trainer.step_number();
            if !matches!(outcome, Ok(()) | Err(Error::Interrupted)) {
                return outcome.map(|()| End::Done);
            }
            let ends = now == step;
            let before =
                if faults::on(Fault::SaveNeedsMultiple) { step.max(now.saturating_sub(1)) } else { step };
            if (ends && saved < now) || crossed(self.section.save_every, before, now) {
                self.save(observer)?;
                saved = now;
            }
            if ends {
                return Ok(if now == last { End::Done } else { End::Stopped });
            }
        }
    }

    /// One generation batch and all of its optimizer steps.
    fn batch(&mut self, observer: &mut dyn GrpoObserver) -> Result<(), Error> {
        let section = self.section;
        let first = self.trainer.step_number();
        if self.updater.sampling != self.rollout.sampling {
            let [want, found] =
                [self.rollout.sampling, self.updater.sampling].map(|options| format!("{options:?}"));
            return Err(Error::FiltersDiffer { want, found });
        }
        let mut batch = self.generate(observer)?;
        if faults::on(Fault::StepMemoryKept) {
            std::mem::forget(vec![1u8; 1 << 20]);
        }
        if faults::on(Fault::CompletionRetokenized) {
            for sample in batch.groups.iter_mut().flat_map(|group| &mut group.samples) {
                sample.tokens = self.tokenizer.encode_continuation(&sample.text)?;
            }
        }
        if faults::on(Fault::WeightsChangeBeforeUpdate) {
            self.trainer.model.params.norm.value_mut()?.data_mut::<f32>().map_err(model::Error::from)?[0] +=
                0.125;
        }
        observer.enter(GrpoPhase::Save)?;
        if let Some(files) = &self.files {
            let lines = record::lines(&batch, &self.scorer.names(), &self.rollout);
            files.run.write_rollouts(batch.step, &lines)?;
        }
        observer.batch(&batch);
        self.verify(&batch, observer)?;
        let kept = self.kept_sets(&batch, observer)?;
        let references = self.reference_values(&batch, &kept, observer)?;
        let per_step = section.prompts_per_step / section.steps_per_generation;
        let loss_tokens = self.loss_tokens(&batch);
        let mut policy = Policy::Sampling;
        for iteration in 0..section.num_iterations {
            for (part, groups) in batch.groups.chunks(per_step).enumerate() {
                observer.enter(GrpoPhase::Update)?;
                let start = part * per_step * section.num_generations;
                let place = |fault, i| if faults::on(fault) { i } else { start + i };
                let completions: Vec<Weighted<'_>> = samples(groups)
                    .enumerate()
                    .map(|(i, (group, sample))| Weighted {
                        group,
                        sample,
                        advantage: batch.advantages.values[place(Fault::PartsShareAdvantages, i)],
                        reference: references.as_ref().map(|all| all[start + i].clone()),
                        kept: kept.get(place(Fault::PartsShareKeptSets, i)).map_or(&[][..], |kept| kept),
                    })
                    .collect();
                let is_first = (iteration, part) == (0, 0);
                if !is_first && faults::on(Fault::SkippedStepEndsOnPolicy) {
                    policy = Policy::Updated;
                }
                let new_tokens = if is_first { batch.tokens() } else { 0 };
                let input = StepInput { completions: &completions, policy, loss_tokens, new_tokens };
                let report = self.updater.step(self.trainer, &input);
                let report = report.map_err(|error| self.diagnose(error, &batch))?;
                let now = report.step.step;
                let mut metrics = StepMetrics::new(now);
                self.push_metrics(&mut metrics, is_first.then_some(&batch), &report);
                if report.trained > 0 {
                    policy = Policy::Updated;
                }
                if now % section.steps_per_batch() as u64 == 0 {
                    let due = crossed(section.eval_every, first, now) || now == section.steps as u64;
                    if due && section.eval_every > 0 {
                        self.evaluate(&mut metrics, observer)?;
                    }
                }
                self.log(&metrics, observer)?;
            }
        }
        if crossed(section.ref_model_sync_steps, first, self.trainer.step_number())
            && let Some(reference) = &mut self.reference
        {
            reference.mix(&self.trainer.model, section.ref_model_mixup_alpha)?;
        }
        Ok(())
    }

    /// Tokens of the loss of a generation batch per optimizer step of a pass; at least 1.
    fn loss_tokens(&self, batch: &Batch) -> f64 {
        let masked =
            self.section.mask_truncated_completions && !faults::on(Fault::MaskedCompletionsInDivisor);
        let tokens = sampled_tokens(&batch.groups, masked);
        let steps =
            if faults::on(Fault::DivisorOfWholeBatch) { 1 } else { self.section.steps_per_generation };
        tokens.max(1) as f64 / steps as f64
    }

    /// The cause of a difference between the sampler and the trainer, if the weights are the cause.
    fn diagnose(&self, error: Error, batch: &Batch) -> Error {
        match (&error, policy_digest(&self.trainer.model)) {
            (Error::Mismatch { .. }, Ok(found)) if found != batch.policy => {
                Error::WeightsChanged { step: batch.step, policy: batch.policy.clone(), found }
            }
            _ => error,
        }
    }

    /// The log-probabilities of all completions under the reference model. `None`: there is no KL term.
    fn reference_values(
        &self,
        batch: &Batch,
        kept: &[Vec<Option<KeptSet>>],
        observer: &mut dyn GrpoObserver,
    ) -> Result<Option<Vec<Vec<f64>>>, Error> {
        let Some(reference) = &self.reference else { return Ok(None) };
        observer.enter(GrpoPhase::Reference)?;
        let completions: Vec<Weighted<'_>> = unweighted(batch, kept);
        self.updater.log_probs(reference, &completions, &*self.processes.comm).map(Some)
    }

    /// The tokens that the filters keep under the weights that sampled. Later passes over the batch and the reference
    /// model keep the same tokens. Empty: nothing but the first pass reads the batch, or nothing is filtered. With a
    /// constraint there are no filters, and all passes keep the tokens that it allows.
    fn kept_sets(
        &self,
        batch: &Batch,
        observer: &mut dyn GrpoObserver,
    ) -> Result<Vec<Vec<Option<KeptSet>>>, Error> {
        let reread = self.section.steps_per_batch() > 1 || self.reference.is_some();
        let constraint = self.rollout.constraint.as_ref();
        if let Some(constraint) = constraint.filter(|_| !faults::on(Fault::UpdateForgetsConstraint)) {
            let eos = self.tokenizer.eos_ids();
            let sets = samples(&batch.groups).map(|(_, sample)| constraint.kept_sets(sample, eos));
            return sets.collect();
        }
        if !(reread && self.updater.filters()) {
            return Ok(Vec::new());
        }
        observer.enter(GrpoPhase::Update)?;
        self.updater
            .kept_sets(&self.trainer.model, &unweighted(batch, &[]), &*self.processes.comm)
            .map_err(|error| self.diagnose(error, batch))
    }

    fn log(&mut self, metrics: &StepMetrics, observer: &mut dyn GrpoObserver) -> Result<(), Error> {
        if let Some(files) = &mut self.files {
            files.metrics.write(metrics)?;
        }
        observer.step(metrics)
    }

    fn save(&mut self, observer: &mut dyn GrpoObserver) -> Result<(), Error> {
        observer.enter(GrpoPhase::Save)?;
        self.trainer.leave()?;
        if let Some(files) = &mut self.files {
            files.metrics.sync()?;
        }
        if let Some(files) = &self.files {
            self.write_checkpoint(files, observer)?;
        }
        Ok(self.trainer.join(&self.processes)?)
    }

    fn write_checkpoint(&self, files: &GrpoFiles<'_>, observer: &mut dyn GrpoObserver) -> Result<(), Error> {
        let state = RunState { seed: self.seed, best: None };
        if let (Some(dir), Some(model)) = (files.reference_checkpoints, &self.reference) {
            let source =
                ExportSource { model, tokenizer: Some(self.tokenizer), eos: self.tokenizer.eos_ids() };
            let saved = store::save_model(dir, &source, self.trainer.step_number())?;
            if let Some(error) = saved.not_pruned {
                observer.note(&format!("warning: older reference models were not deleted: {error}"));
            }
        }
        let record = [(run::RECORD, files.record.as_bytes())];
        let saved = store::save(files.checkpoints, self.trainer, self.tokenizer, state, &record)?;
        observer.saved(saved.path, saved.not_pruned);
        Ok(())
    }
}

/// The completions of a batch without advantages.
fn unweighted<'a>(batch: &'a Batch, kept: &'a [Vec<Option<KeptSet>>]) -> Vec<Weighted<'a>> {
    let weighted = |(i, (group, sample))| {
        let kept: &[Option<KeptSet>] = kept.get(i).map_or(&[], |kept: &Vec<_>| kept);
        Weighted { group, sample, advantage: 0.0, reference: None, kept }
    };
    samples(&batch.groups).enumerate().map(weighted).collect()
}

/// Whether a multiple of `every` lies in `before + 1 ..= now`. 0: never.
pub fn crossed(every: usize, before: u64, now: u64) -> bool {
    every > 0 && now / every as u64 > before / every as u64
}
