//! Logs of a run for people: TensorBoard events and the session.
use super::exit::{CliError, Exit};
use crate::report::EventFile;
use crate::run::{Metrics, RunDir, RunSession, SessionOutcome};
use crate::tensor::Device;

/// Creates the event file of TensorBoard with the metrics so far.
pub(super) fn event_file(run: &RunDir, metrics: &Metrics) -> Result<EventFile, CliError> {
    let path = run.path().join("logs").join("events.out.tfevents.0.xtrain");
    let io = |error| CliError::io(&path, &error);
    let mut events = EventFile::create(&path).map_err(io)?;
    for (step, values) in metrics.steps() {
        events.write(step, 0.0, values).map_err(io)?;
    }
    Ok(events)
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
        Err(error) if matches!(error.exit(), Exit::Interrupted | Exit::Terminated) => {
            session.end(SessionOutcome::Stopped, String::new());
        }
        Err(error) => session.end(SessionOutcome::Failed, error.message().to_string()),
    }
    // The result of the run matters more than a full disk here.
    let _ = session.write(run.path());
    end
}
