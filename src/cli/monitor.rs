//! What a training run shows on a terminal, and what its clock says.
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;

use super::interrupt::Interrupt;
use super::{CliError, Exit};
use crate::evaluate::Evaluation;
use crate::model::checkpoint::CheckpointError;
use crate::model::{Model, StepReport};
use crate::report::units;
use crate::report::{Progress, printable};
use crate::run::JsonLines;
use crate::training::{Error, Observer, Phase};

/// DeviceSampler what a run shows of its model after a step.
pub type Sampler<'a> = &'a dyn Fn(&Model, u64) -> Result<String, CliError>;

/// Shows progress, writes `timings.jsonl`, listens for signals.
pub struct Monitor<'a> {
    /// The bar.
    pub progress: Progress,
    /// `timings.jsonl`.
    pub timings: JsonLines,
    /// Ctrl-C and SIGTERM.
    pub interrupt: Interrupt,
    /// DeviceSampler the samples that a run shows.
    pub sampler: Sampler<'a>,
    /// The newest checkpoint.
    pub last_saved: Option<PathBuf>,
    phase: Option<Phase>,
    clock: Instant,
    timing: Timing,
    tokens: u64,
    began: Instant,
    first_tokens: u64,
}

/// A line of `timings.jsonl`, in seconds: what the step itself took, and what was done after it.
#[derive(Default, Serialize)]
struct Timing {
    step: u64,
    step_time: f64,
    tokens_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    save_time: Option<f64>,
}

impl<'a> Monitor<'a> {
    /// A monitor of a run that has seen `tokens` targets.
    pub fn new(
        progress: Progress,
        timings: JsonLines,
        interrupt: Interrupt,
        (sampler, tokens): (Sampler<'a>, u64),
    ) -> Monitor<'a> {
        let (began, first_tokens, last_saved) = (Instant::now(), tokens, None);
        Monitor {
            progress,
            timings,
            interrupt,
            sampler,
            last_saved,
            phase: None,
            clock: began,
            timing: Timing::default(),
            tokens,
            began,
            first_tokens,
        }
    }

    /// Books the time since the last phase began.
    fn book(&mut self) {
        let took = self.clock.elapsed().as_secs_f64();
        self.clock = Instant::now();
        match self.phase {
            Some(Phase::Step) => self.timing.step_time = took,
            Some(Phase::Evaluate) => self.timing.eval_time = Some(took),
            Some(Phase::Sample) => self.timing.sample_time = Some(took),
            Some(Phase::Save) => self.timing.save_time = Some(took),
            Some(Phase::Log | Phase::End) | None => {}
        }
    }

    /// The exit code of the signal that stopped the run, if one did.
    pub fn signal(&self) -> Option<Exit> {
        self.interrupt.asked()
    }
}

impl Observer for Monitor<'_> {
    fn enter(&mut self, phase: Phase) -> Result<(), Error> {
        self.book();
        self.phase = Some(phase);
        if !matches!(phase, Phase::Step | Phase::End) {
            return Ok(());
        }
        let done = std::mem::take(&mut self.timing);
        // What is saved before the first step is not a step's.
        if done.step > 0 { Ok(self.timings.write(&done)?) } else { Ok(()) }
    }

    fn step(&mut self, report: &StepReport, val: Option<&Evaluation>) -> Result<(), Error> {
        let step = report.step;
        self.timing.step = step;
        self.timing.tokens_per_second = (report.target_tokens - self.tokens) as f64 / self.timing.step_time;
        self.tokens = report.target_tokens;
        let (tokens, seconds) =
            (report.target_tokens - self.first_tokens, self.began.elapsed().as_secs_f64());
        let rate = units::rate(tokens as f64 / seconds, "tok");
        self.progress.at(step, &format!("{rate}, loss {:.3}", report.loss));
        if let Some(val) = val {
            self.progress.line(&format!(
                "step {step}: loss {:.4}, validation loss {:.4}, perplexity {:.2}, {:.3} bits per byte",
                report.loss,
                val.loss,
                val.perplexity(),
                val.bits_per_byte()
            ));
        }
        Ok(())
    }

    fn saved(&mut self, path: PathBuf, not_pruned: Option<CheckpointError>) {
        self.progress.line(&format!("saved {}", path.display()));
        if let Some(error) = not_pruned {
            self.progress.line(&format!("warning: older checkpoints stay: {error}"));
        }
        self.last_saved = Some(path);
    }

    fn sample(&mut self, model: &Model, step: u64) {
        match (self.sampler)(model, step) {
            Ok(text) => self.progress.line(&format!("sample after step {step}:\n{}", printable(&text))),
            Err(error) => self.progress.line(&format!("no sample: {error}")),
        }
    }

    fn stop(&mut self) -> bool {
        self.interrupt.asked().is_some()
    }
}
