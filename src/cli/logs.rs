//! Logs of a run for people: TensorBoard events and the session.
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use super::exit::CliError;
use crate::report::{EventFile, printable};
use crate::run::{Metrics, RunDir, RunSession, SessionOutcome, SkippedLines, is_phase};
use crate::tensor::Device;
use crate::tensor::faults::{self, Fault};

/// Warns if the metrics of a run end before `step`, from which it continues.
pub(super) fn warn_of_gap(run: &RunDir, metrics: &Metrics, step: u64) {
    let last = metrics.steps().map(|(step, _)| step).last();
    if last.unwrap_or(0) < step && !faults::on(Fault::LogGapUnreported) {
        let lines = last.map_or("no line".to_string(), |last| format!("lines up to step {last}"));
        let log = run.metrics();
        eprintln!(
            "warning: {} has {lines}, the checkpoint is of step {step}: plots will have a gap",
            log.display()
        );
    }
}

/// Warns of damaged lines of a log, which a command skipped.
pub(super) fn warn_of_skipped<'a>(skipped: impl IntoIterator<Item = &'a SkippedLines>) {
    skipped.into_iter().for_each(|lines| eprintln!("warning: {}", printable(&lines.to_string())));
}

/// Creates the event file of TensorBoard with the metrics so far.
pub(super) fn event_file(run: &RunDir, metrics: &Metrics) -> Result<EventFile, CliError> {
    let path = run.path().join("logs").join("events.out.tfevents.0.xtrain");
    let io = |error| CliError::io(&path, &error);
    let mut events = EventFile::create(&path).map_err(io)?;
    let steps: Vec<_> = metrics.steps().collect();
    let is_grpo = metrics.curve("reward").is_some();
    let times = wall_times(run, is_grpo, steps.iter().map(|(step, _)| *step));
    for ((step, values), time) in steps.into_iter().zip(times) {
        events.write(step, time, values).map_err(io)?;
    }
    Ok(events)
}

/// When the steps of `metrics.jsonl` ended, in seconds since 1970: the last one when the file was last changed, each
/// other one earlier by the phases of the steps after it in `timings.jsonl`. The line of the first step of `xtrain grpo`
/// includes what came before it, so step 0 has the time of the start. Time between two sessions is left out, and
/// so is the time of steps that a resume computes again.
fn wall_times(run: &RunDir, is_grpo: bool, steps: impl Iterator<Item = u64>) -> Vec<f64> {
    let changed = run.metrics().metadata().and_then(|data| data.modified()).ok();
    let last =
        changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default().as_secs_f64();
    let timings = Metrics::read(&run.path().join("timings.jsonl")).unwrap_or_default();
    let mut seconds: BTreeMap<u64, f64> = BTreeMap::new();
    for (step, values) in timings.steps() {
        let phases = values.iter().filter(|(key, _)| is_phase(key, is_grpo));
        seconds.insert(step, phases.map(|(_, time)| time).sum());
    }
    let mut left: f64 = seconds.values().sum();
    let mut rest = seconds.into_iter().peekable();
    let mut time = |step: u64| {
        while let Some((_, seconds)) = rest.next_if(|(at, _)| *at <= step) {
            left -= seconds;
        }
        last - left
    };
    steps.map(&mut time).collect()
}

/// Runs `work` as a session of `run` on `device`, and records how it ends.
pub(super) fn session(
    run: &RunDir,
    device: &Device,
    first_step: u64,
    work: impl FnOnce() -> Result<(), CliError>,
) -> Result<(), CliError> {
    let mut session = RunSession::start(device, first_step);
    session.write(run.path())?;
    let end = work();
    match &end {
        Ok(()) => session.end(SessionOutcome::Done, String::new()),
        Err(error) if error.exit().is_stop() => session.end(SessionOutcome::Stopped, String::new()),
        Err(error) => session.end(SessionOutcome::Failed, error.message().to_string()),
    }
    // The result of the run matters more than a full disk here.
    let _ = session.write(run.path());
    end
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::Duration;

    use super::*;

    #[test]
    fn steps_are_dated_back_from_the_last_one_by_their_phases() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let run = RunDir::create(&path, "").unwrap();
        let line = |step: u32| {
            format!("{{\"step\": {step}, \"step_time\": 2, \"rollout_time\": 1.5, \"update_time\": 0.5}}\n")
        };
        fs::write(path.join("timings.jsonl"), [1, 2, 3].map(line).concat()).unwrap();
        File::create(run.metrics()).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(1000)).unwrap();
        let times = |is_grpo| wall_times(&run, is_grpo, [0, 1, 2, 3].into_iter());
        assert_eq!(times(false), [988.0, 992.0, 996.0, 1000.0]);
        // the time of a step of xtrain grpo is the sum of its phases
        assert_eq!(times(true), [994.0, 996.0, 998.0, 1000.0]);
    }
}
