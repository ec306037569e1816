//! One line for each update of a run.
use std::thread;
use std::time::Duration;

use super::watched::Watched;
use crate::cli::exit::CliError;
use crate::cli::out;
use crate::report::{printable, units};
use crate::run::{Activity, RunView};

/// Prints a line for each update until the run ends.
pub(super) fn watch(watched: &mut Watched, interval: Duration) -> Result<(), CliError> {
    let mut last = String::new();
    loop {
        watched.refresh()?;
        watched.warn_of_skipped();
        let activity = watched.activity();
        let line = match &watched.view {
            None => printable(&format!("waiting for {}", watched.run.display())),
            Some(view) => status(view, &activity),
        };
        if line != last {
            out::print(format!("{line}\n"))?;
            last = line;
        }
        if !activity.may_continue() {
            return Ok(());
        }
        thread::sleep(interval);
    }
}

/// Step, last values, speed and remaining time of a run; how it ended.
pub(super) fn status(view: &RunView, activity: &Activity) -> String {
    let mut parts = vec![progress(view)];
    parts.extend(values(view));
    if activity.may_continue() {
        parts.extend(view.seconds_left().map(|seconds| format!("{} left", units::seconds(seconds))));
    }
    let line = format!("{}: {}", view.name, parts.join(", "));
    printable(&match activity {
        Activity::Waiting | Activity::Running => line,
        Activity::Failed(message) => format!("{line}; failed: {message}"),
        ended => format!("{line}; {}", ended.word()),
    })
}

/// `step 500/2000 (25 %)`.
pub(super) fn progress(view: &RunView) -> String {
    let step = view.step();
    match view.steps() {
        Some(steps) => format!("step {step}/{steps} ({} %)", 100 * step.min(steps) / steps.max(1)),
        None => format!("step {step}"),
    }
}

/// The last values of the most important curves.
pub(super) fn values(view: &RunView) -> Vec<String> {
    let names: &[(&str, &str)] = match view.is_grpo() {
        true => &[("reward", "reward"), ("completions/mean_length", "length"), ("entropy", "entropy")],
        false => &[("loss", "loss"), ("val_loss", "validation loss")],
    };
    let last = |key: &str| Some(view.metrics.curve(key)?.last()?.1);
    let values =
        names.iter().filter_map(|(key, name)| Some(format!("{name} {}", units::decimal(last(key)?))));
    let rate = view.timings.curve("tokens_per_second").and_then(|points| points.last());
    values.chain(rate.map(|point| units::rate(point.1, "tok"))).collect()
}
