//! Progress output and timings of a training run.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::exit::CliError;
use super::interrupt::Interrupt;
use crate::evaluate::Evaluation;
use crate::model::checkpoint::CheckpointError;
use crate::model::{Model, StepReport};
use crate::report::{EventFile, Progress, printable, units};
use crate::run::{JsonLines, SampleLine};
use crate::training::{Error, Observer, Phase};

/// Generates the text samples after a step.
pub(super) type SampleFn<'a> = &'a dyn Fn(&Model, u64) -> Result<Vec<String>, CliError>;

/// The files that a monitor writes.
pub(super) struct MonitorLogs {
    /// `timings.jsonl`.
    pub(super) timings: JsonLines,
    /// `samples.jsonl`. `None`: the run generates no samples.
    pub(super) samples: Option<JsonLines>,
    /// Events for TensorBoard.
    pub(super) events: EventFile,
}

/// Shows progress, writes timings, samples and events, and checks for signals.
pub(super) struct Monitor<'a> {
    pub(super) progress: Progress,
    logs: MonitorLogs,
    pub(super) interrupt: Interrupt,
    pub(super) sampler: SampleFn<'a>,
    pub(super) last_saved: Option<PathBuf>,
    phase: Option<Phase>,
    clock: Instant,
    timing: Timing,
    tokens: u64,
    start: Instant,
    first_tokens: u64,
    /// The loss of the last step. NaN: it had no target.
    loss: f32,
    /// The norms of the step, for its events.
    norms: BTreeMap<String, f64>,
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

impl Timing {
    /// Adds the time of a phase. A step may save twice: the best weights, and then a checkpoint.
    fn add(&mut self, phase: Phase, seconds: f64) {
        match phase {
            Phase::Step => self.step_time = seconds,
            Phase::Evaluate => self.eval_time = Some(seconds),
            Phase::Sample => self.sample_time = Some(seconds),
            Phase::Save => *self.save_time.get_or_insert(0.0) += seconds,
            Phase::Log | Phase::End => {}
        }
    }
}

impl<'a> Monitor<'a> {
    /// A monitor of a run that has trained on `tokens` target tokens so far.
    pub(super) fn new(
        progress: Progress,
        logs: MonitorLogs,
        interrupt: Interrupt,
        sampler: SampleFn<'a>,
        tokens: u64,
    ) -> Monitor<'a> {
        let now = Instant::now();
        Monitor {
            progress,
            logs,
            interrupt,
            sampler,
            last_saved: None,
            phase: None,
            clock: now,
            timing: Timing::default(),
            tokens,
            start: now,
            first_tokens: tokens,
            loss: f32::NAN,
            norms: BTreeMap::new(),
        }
    }
}

impl Monitor<'_> {
    /// Tokens per second since the start, and the last loss.
    fn note(&self) -> String {
        let tokens = self.tokens - self.first_tokens;
        let rate = units::rate(tokens as f64 / self.start.elapsed().as_secs_f64(), "tok");
        if self.loss.is_nan() { rate } else { format!("{rate}, loss {:.3}", self.loss) }
    }

    /// Writes the numbers of a step, as in `metrics.jsonl`. Plots are a convenience: a full disk must not end the run
    /// here.
    fn write_events(&mut self, report: &StepReport, val: Option<&Evaluation>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let loss = (!report.loss.is_nan()).then_some(("loss", f64::from(report.loss)));
        let mut scalars: Vec<_> = loss.into_iter().collect();
        scalars.extend([
            ("grad_norm", f64::from(report.grad_norm)),
            ("learning_rate", report.learning_rate),
            ("num_tokens", report.target_tokens as f64),
        ]);
        if let Some(val) = val {
            scalars.extend([("val_loss", val.loss), ("val_perplexity", val.perplexity())]);
            scalars.extend(val.bits_per_byte().map(|bits| ("val_bits_per_byte", bits)));
        }
        let norms = std::mem::take(&mut self.norms);
        scalars.extend(norms.iter().map(|(key, norm)| (key.as_str(), *norm)));
        let _ = self.logs.events.write(report.step, now, scalars);
    }
}

impl Observer for Monitor<'_> {
    fn enter(&mut self, phase: Phase) -> Result<(), Error> {
        let seconds = self.clock.elapsed().as_secs_f64();
        self.clock = Instant::now();
        if let Some(phase) = self.phase.replace(phase) {
            self.timing.add(phase, seconds);
        }
        if phase == Phase::End && self.timing.step > 0 {
            // the last line of the progress has one time for both rates
            self.progress.note(&self.note());
        }
        if !matches!(phase, Phase::Step | Phase::End) {
            return Ok(());
        }
        let done = std::mem::take(&mut self.timing);
        // The checkpoint before the first step does not belong to a step.
        if done.step > 0 { Ok(self.logs.timings.write(&done)?) } else { Ok(()) }
    }

    fn step(&mut self, report: &StepReport, val: Option<&Evaluation>) -> Result<(), Error> {
        let step = report.step;
        self.timing.step = step;
        self.timing.tokens_per_second = (report.target_tokens - self.tokens) as f64 / self.timing.step_time;
        self.tokens = report.target_tokens;
        self.write_events(report, val);
        self.loss = report.loss;
        self.progress.at(step, &self.note());
        if let Some(val) = val {
            let loss = if report.loss.is_nan() { "none".into() } else { format!("{:.4}", report.loss) };
            let val_loss = val.loss;
            let perplexity = units::perplexity(val.perplexity(), 2);
            let bits = val.bits_per_byte().map_or(String::new(), |bits| format!(", {bits:.3} bits per byte"));
            self.progress.line(&format!(
                "step {step}: loss {loss}, validation loss {val_loss:.4}, perplexity {perplexity}{bits}"
            ));
        }
        Ok(())
    }

    fn norms(&mut self, norms: &BTreeMap<String, f64>) {
        self.norms.clone_from(norms);
    }

    fn saved(&mut self, path: PathBuf, not_pruned: Option<CheckpointError>) {
        self.progress.line(&saved(&path, not_pruned.as_ref()));
        self.last_saved = Some(path);
    }

    fn sample(&mut self, model: &Model, step: u64) {
        match (self.sampler)(model, step) {
            Ok(samples) => {
                let text = samples.join("\n");
                self.progress.line(&format!("sample at step {step}:\n{}", printable(text.trim_end())));
                let log = self.logs.samples.as_mut();
                if let Some(Err(error)) = log.map(|log| log.write(&SampleLine { step, samples })) {
                    self.progress.line(&format!("warning: the samples were not logged: {error}"));
                }
            }
            Err(error) => self.progress.line(&format!("warning: sampling failed: {error}")),
        }
    }

    fn stop(&mut self) -> bool {
        self.interrupt.requested().is_some()
    }
}

/// The message about a saved checkpoint. `not_pruned`: the error that kept older ones.
pub(super) fn saved(path: &Path, not_pruned: Option<&CheckpointError>) -> String {
    let text = format!("saved {}", path.display());
    match not_pruned {
        Some(error) => format!("{text}\nwarning: older checkpoints were not deleted: {error}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_two_saves_of_a_step_are_added() {
        let mut timing = Timing { step: 3, tokens_per_second: 2.0, ..Timing::default() };
        for (phase, seconds) in
            [(Phase::Step, 4.0), (Phase::Save, 0.5), (Phase::Log, 8.0), (Phase::Save, 0.25)]
        {
            timing.add(phase, seconds);
        }
        let want = r#"{"step":3,"step_time":4.0,"tokens_per_second":2.0,"save_time":0.75}"#;
        assert_eq!(serde_json::to_string(&timing).unwrap(), want);
    }

    #[test]
    fn an_error_that_kept_older_checkpoints_is_reported() {
        let source = std::io::Error::other("busy");
        let error = CheckpointError::Io { path: "a/step_000001".into(), op: "remove", source };
        let path = Path::new("a/step_000002");
        assert_eq!(saved(path, None), "saved a/step_000002");
        let want = format!("saved a/step_000002\nwarning: older checkpoints were not deleted: {error}");
        assert_eq!(saved(path, Some(&error)), want);
    }
}
