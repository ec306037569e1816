//! Progress output and timings of a run of reinforcement learning.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::cli::exit::Exit;
use crate::cli::interrupt::Interrupt;
use crate::cli::monitor::saved;
use crate::config::GrpoSection;
use crate::grpo::batch::Sample;
use crate::grpo::metrics::StepMetrics;
use crate::grpo::{Batch, Error, GrpoObserver, GrpoPhase, Warnings, crossed};
use crate::model::checkpoint::CheckpointError;
use crate::report::{EventFile, Progress, Resident, Table, printable, units};
use crate::run::JsonLines;
use crate::tensor::faults::{self, Fault};

/// Shows progress, writes `timings.jsonl` and checks for signals.
pub(super) struct GrpoMonitor {
    progress: Progress,
    timings: JsonLines,
    events: EventFile,
    interrupt: Interrupt,
    show_every: usize,
    steps: u64,
    steps_per_batch: u64,
    clock: Instant,
    phase: Option<GrpoPhase>,
    seconds: BTreeMap<&'static str, f64>,
    /// Sampled tokens of the rollouts of the step.
    tokens: usize,
    last: StepMetrics,
    warnings: Warnings,
}

/// A line of `timings.jsonl`: the seconds of each phase, the sampled tokens per second of rollout, and the resident
/// memory at the end of the step.
#[derive(Serialize)]
struct Timing<'a> {
    step: u64,
    step_time: f64,
    /// `None`: the step used the completions of an earlier one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_second: Option<f64>,
    #[serde(flatten)]
    phases: &'a BTreeMap<&'static str, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resident_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_resident_bytes: Option<u64>,
}

impl GrpoMonitor {
    /// A monitor of a run that has finished `step` steps, with the warnings of these steps.
    pub(super) fn new(
        section: &GrpoSection,
        timings: JsonLines,
        events: EventFile,
        interrupt: Interrupt,
        step: u64,
        warnings: Warnings,
    ) -> GrpoMonitor {
        let steps = section.steps as u64;
        GrpoMonitor {
            progress: Progress::new("grpo", "step", steps, step),
            timings,
            events,
            interrupt,
            show_every: section.show_every,
            steps,
            steps_per_batch: section.steps_per_batch() as u64,
            clock: Instant::now(),
            phase: None,
            seconds: BTreeMap::new(),
            tokens: 0,
            last: StepMetrics::default(),
            warnings,
        }
    }

    /// Ends the progress output. Returns the exit code of the signal that stopped the run.
    pub(super) fn finish(self) -> Option<Exit> {
        self.progress.finish();
        self.interrupt.requested()
    }

    fn end_phase(&mut self) {
        let seconds = self.clock.elapsed().as_secs_f64();
        self.clock = Instant::now();
        if let Some(phase) = self.phase.take() {
            *self.seconds.entry(name(phase)).or_default() += seconds;
            if phase == GrpoPhase::Preallocate {
                self.progress.begin_units();
            }
        }
    }
}

/// The key of a phase in `timings.jsonl`.
fn name(phase: GrpoPhase) -> &'static str {
    match phase {
        GrpoPhase::Preallocate => "preallocate_time",
        GrpoPhase::Rollout => "rollout_time",
        GrpoPhase::Reward => "reward_time",
        GrpoPhase::Reference => "reference_time",
        GrpoPhase::Update => "update_time",
        GrpoPhase::Evaluate => "eval_time",
        GrpoPhase::Verify => "verify_time",
        GrpoPhase::Save => "save_time",
    }
}

impl GrpoObserver for GrpoMonitor {
    fn enter(&mut self, phase: GrpoPhase) -> Result<(), Error> {
        self.end_phase();
        self.phase = Some(phase);
        Ok(())
    }

    fn generated(&mut self) -> bool {
        self.interrupt.requested().is_none()
    }

    fn step(&mut self, metrics: &StepMetrics) -> Result<(), Error> {
        self.end_phase();
        let (get, step) = (|name| metrics.get(name), metrics.step);
        let step_time: f64 = self.seconds.values().sum();
        let rollout = self.seconds.get("rollout_time").filter(|&&seconds| seconds > 0.0);
        let tokens_per_second = rollout.map(|seconds| self.tokens as f64 / seconds);
        if step > 0 {
            let resident = Resident::measure();
            self.timings.write(&Timing {
                step,
                step_time,
                tokens_per_second,
                phases: &self.seconds,
                resident_bytes: resident.map(|resident| resident.now),
                peak_resident_bytes: resident.map(|resident| resident.peak),
            })?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        // Plots are a convenience: a full disk must not end the run here.
        let _ = self.events.write(step, now, metrics.iter());
        if let (Some(sampled), Some(greedy)) = (get("eval/reward_sampled"), get("eval/reward_greedy")) {
            let pass = get("eval/pass_at_k").unwrap_or(0.0);
            let [sampled, greedy] = [sampled, greedy].map(units::decimal);
            self.progress.line(&format!(
                "step {step}: held-out reward: sampled {sampled}, greedy {greedy}, pass@k {pass:.3}"
            ));
        }
        if step > 0 {
            // the line of the first step of a batch has its values
            if get("completions/mean_length").is_some() {
                self.last = metrics.clone();
            }
            let reward = self.last.get("reward").map_or("none".to_string(), units::decimal);
            let length = self.last.get("completions/mean_length").unwrap_or(0.0);
            let mut note = format!("reward {reward}, length {length:.1}");
            note += &format!(", gradient norm {:.3}", get("grad_norm").unwrap_or(0.0));
            if let Some(rate) = tokens_per_second {
                note += &format!(", {}", units::rate(rate, "tok"));
            }
            self.progress.at(step, &note);
        }
        for warning in self.warnings.check(metrics) {
            self.progress.line(&format!("warning at step {step}: {warning}"));
        }
        if step == 0 {
            self.progress.begin_units();
        }
        // The line of the first step has the times before it.
        if step > 0 || faults::on(Fault::FirstEvaluationUntimed) {
            self.seconds.clear();
        }
        Ok(())
    }

    fn batch(&mut self, batch: &Batch) {
        let groups = batch.groups.iter().chain(&batch.discarded);
        self.tokens = groups.flat_map(|group| &group.samples).map(Sample::sampled).sum();
        let last = batch.step - 1 + self.steps_per_batch;
        let at_an_end = batch.step == 1 || last == self.steps;
        if self.show_every > 0 && (at_an_end || crossed(self.show_every, batch.step - 1, last)) {
            self.progress.line(&completions(batch));
        }
    }

    fn saved(&mut self, path: PathBuf, not_pruned: Option<CheckpointError>) {
        self.progress.line(&saved(&path, not_pruned.as_ref()));
    }

    fn note(&mut self, text: &str) {
        self.progress.line(text);
    }

    fn stop(&mut self) -> bool {
        self.interrupt.requested().is_some()
    }
}

/// The best, the median and the worst completion of a batch.
fn completions(batch: &Batch) -> String {
    let all: Vec<_> = crate::grpo::batch::samples(&batch.groups).zip(&batch.scores.total).collect();
    let mut order: Vec<usize> = (0..all.len()).collect();
    let reward = |i: usize| all[i].1.unwrap_or(f64::NEG_INFINITY);
    order.sort_by(|&a, &b| reward(b).total_cmp(&reward(a)).then(a.cmp(&b)));
    let mut table = Table::new(&["completion", "prompt", "text"], &["reward"]);
    let picks = [("best", 0), ("median", order.len() / 2), ("worst", order.len() - 1)];
    for (name, at) in picks {
        let ((group, sample), reward) = &all[order[at]];
        let reward = reward.map_or("none".to_string(), units::decimal);
        table.row([name.to_string(), short(&group.prompt.text), short(&sample.text), reward]);
    }
    format!("completions of step {}:\n{}", batch.step, table.render())
}

/// The text in one line of at most 48 characters.
fn short(text: &str) -> String {
    let line = printable(&text.replace('\n', "\\n"));
    match line.char_indices().nth(48) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line.to_string(),
    }
}
