//! Progress output and timings of a training run.
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;

use super::exit::CliError;
use super::interrupt::Interrupt;
use crate::evaluate::Evaluation;
use crate::model::checkpoint::CheckpointError;
use crate::model::{Model, StepReport};
use crate::report::{Progress, printable, units};
use crate::run::JsonLines;
use crate::training::{Error, Observer, Phase};

/// Generates the text samples after a step.
pub(super) type SampleFn<'a> = &'a dyn Fn(&Model, u64) -> Result<String, CliError>;

/// Shows progress, writes `timings.jsonl` and checks for signals.
pub(super) struct Monitor<'a> {
    pub(super) progress: Progress,
    pub(super) timings: JsonLines,
    pub(super) interrupt: Interrupt,
    pub(super) sampler: SampleFn<'a>,
    pub(super) last_saved: Option<PathBuf>,
    phase: Option<Phase>,
    clock: Instant,
    timing: Timing,
    tokens: u64,
    start: Instant,
    first_tokens: u64,
}

/// A line of `timings.jsonl`, in seconds: the step itself, and the evaluation, sampling and saving after it.
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
    /// A monitor of a run that has trained on `tokens` target tokens so far.
    pub(super) fn new(
        progress: Progress,
        timings: JsonLines,
        interrupt: Interrupt,
        sampler: SampleFn<'a>,
        tokens: u64,
    ) -> Monitor<'a> {
        let now = Instant::now();
        Monitor {
            progress,
            timings,
            interrupt,
            sampler,
            last_saved: None,
            phase: None,
            clock: now,
            timing: Timing::default(),
            tokens,
            start: now,
            first_tokens: tokens,
        }
    }
}

impl Observer for Monitor<'_> {
    fn enter(&mut self, phase: Phase) -> Result<(), Error> {
        let seconds = self.clock.elapsed().as_secs_f64();
        self.clock = Instant::now();
        match self.phase.replace(phase) {
            Some(Phase::Step) => self.timing.step_time = seconds,
            Some(Phase::Evaluate) => self.timing.eval_time = Some(seconds),
            Some(Phase::Sample) => self.timing.sample_time = Some(seconds),
            Some(Phase::Save) => self.timing.save_time = Some(seconds),
            Some(Phase::Log | Phase::End) | None => {}
        }
        if !matches!(phase, Phase::Step | Phase::End) {
            return Ok(());
        }
        let done = std::mem::take(&mut self.timing);
        // The checkpoint before the first step does not belong to a step.
        if done.step > 0 { Ok(self.timings.write(&done)?) } else { Ok(()) }
    }

    fn step(&mut self, report: &StepReport, val: Option<&Evaluation>) -> Result<(), Error> {
        let step = report.step;
        self.timing.step = step;
        self.timing.tokens_per_second = (report.target_tokens - self.tokens) as f64 / self.timing.step_time;
        self.tokens = report.target_tokens;
        let tokens = report.target_tokens - self.first_tokens;
        let rate = units::rate(tokens as f64 / self.start.elapsed().as_secs_f64(), "tok");
        self.progress.at(step, &format!("{rate}, loss {:.3}", report.loss));
        if let Some(val) = val {
            let (loss, val_loss) = (report.loss, val.loss);
            let (perplexity, bits) = (val.perplexity(), val.bits_per_byte());
            self.progress.line(&format!(
                "step {step}: loss {loss:.4}, validation loss {val_loss:.4}, perplexity {perplexity:.2}, {bits:.3} \
                 bits per byte"
            ));
        }
        Ok(())
    }

    fn saved(&mut self, path: PathBuf, not_pruned: Option<CheckpointError>) {
        self.progress.line(&format!("saved {}", path.display()));
        if let Some(error) = not_pruned {
            self.progress.line(&format!("warning: older checkpoints were not deleted: {error}"));
        }
        self.last_saved = Some(path);
    }

    fn sample(&mut self, model: &Model, step: u64) {
        match (self.sampler)(model, step) {
            Ok(text) => self.progress.line(&format!("sample at step {step}:\n{}", printable(&text))),
            Err(error) => self.progress.line(&format!("warning: sampling failed: {error}")),
        }
    }

    fn stop(&mut self) -> bool {
        self.interrupt.requested().is_some()
    }
}
