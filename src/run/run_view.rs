//! What a run has written so far: configuration, curves, samples, session.
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::log_tail::LogTail;
use super::{Metrics, Result, RunDir, RunSession, SessionOutcome, SkippedLines, has_checkpoint};
use crate::config::{Layer, RunConfig};
use crate::rollout_file::RolloutLine;

/// A line of `samples.jsonl`: the text samples after a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleLine {
    /// The step.
    pub step: u64,
    /// The prompt and its continuation.
    pub samples: Vec<String>,
}

/// A completion of a rollout with its reward.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scored {
    pub(crate) prompt: String,
    pub(crate) completion: String,
    /// `None`: no reward applied.
    pub(crate) reward: Option<f64>,
}

/// Whether a run goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Nothing is written yet.
    Waiting,
    /// A process is running it, or wrote to it within the last minute.
    Running,
    /// All steps are finished, or it stopped early.
    Finished,
    /// A signal stopped it.
    Stopped,
    /// An error ended it: the message.
    Failed(String),
    /// Its process is gone, and did not record an end.
    Inactive,
}

impl Activity {
    /// The state as a word.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Activity::Waiting => "waiting",
            Activity::Running => "running",
            Activity::Finished => "finished",
            Activity::Stopped => "stopped",
            Activity::Failed(_) => "failed",
            Activity::Inactive => "not running",
        }
    }

    /// Whether more lines may follow.
    pub(crate) fn may_continue(&self) -> bool {
        matches!(self, Activity::Waiting | Activity::Running)
    }
}

/// A log that was written within this time belongs to a running process.
const RECENT: Duration = Duration::from_secs(60);

/// A reader of a run of this or another process. Files that do not exist yet are empty.
#[derive(Debug)]
pub(crate) struct RunView {
    path: PathBuf,
    logs: [LogTail; 3],
    /// The name of the directory.
    pub(crate) name: String,
    /// The resolved configuration. `None`: not readable.
    pub(crate) config: Option<RunConfig>,
    /// The curves of `metrics.jsonl`.
    pub(crate) metrics: Metrics,
    /// Number of lines of `metrics.jsonl`.
    pub(crate) lines: usize,
    /// The curves of `timings.jsonl`.
    pub(crate) timings: Metrics,
    /// The samples of a run of `xtrain train`.
    pub(crate) samples: Vec<SampleLine>,
    /// The step and the completions of the newest rollout of a run of `xtrain grpo`.
    pub(crate) rollout: Option<(u64, Vec<Scored>)>,
    /// The last process of the run. `None`: a run of an earlier version.
    pub(crate) session: Option<RunSession>,
}

impl RunView {
    /// A view of `run`, which [`RunView::refresh`] fills.
    pub(crate) fn new(run: &RunDir) -> RunView {
        let path = run.path();
        let logs = ["metrics.jsonl", "timings.jsonl", "samples.jsonl"];
        RunView {
            path: path.to_path_buf(),
            logs: logs.map(|name| LogTail::new(&path.join(name))),
            name: run.name(),
            config: None,
            metrics: Metrics::default(),
            lines: 0,
            timings: Metrics::default(),
            samples: Vec::new(),
            rollout: None,
            session: None,
        }
    }

    /// A view of the present state of `run`.
    ///
    /// # Errors
    /// As [`RunView::refresh`].
    pub(crate) fn read(run: &RunDir) -> Result<RunView> {
        let mut view = RunView::new(run);
        view.refresh()?;
        Ok(view)
    }

    /// Reads what was written since the last call.
    ///
    /// # Errors
    /// A log cannot be read, or has finished lines of which none is valid.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        let [metrics, timings, samples] = &mut self.logs;
        let new = metrics.read()?;
        if new.restarted {
            (self.metrics, self.lines) = (Metrics::default(), 0);
        }
        self.lines += new.lines.len();
        new.lines.into_iter().for_each(|(step, fields)| self.metrics.add(step, fields));
        let new = timings.read()?;
        if new.restarted {
            self.timings = Metrics::default();
        }
        new.lines.into_iter().for_each(|(step, fields)| self.timings.add(step, fields));
        let new = samples.read()?;
        if new.restarted {
            self.samples.clear();
        }
        let line = |(_, fields)| serde_json::from_value(Value::Object(fields)).ok();
        self.samples.extend(new.lines.into_iter().filter_map(line));
        self.config = RunConfig::load(&[Layer::File(self.path.join("config.toml"))]).ok();
        // Until its base model is trained, a run of `xtrain grpo` has the session of `base/`.
        let unfinished =
            |session: &RunSession| session.end.as_ref().is_none_or(|end| end.outcome != SessionOutcome::Done);
        let base = || RunSession::read(&self.path.join("base")).filter(unfinished);
        self.session = RunSession::read(&self.path).or_else(base);
        let newest = newest_rollout(&self.path);
        if newest.as_ref().map(|(step, _)| *step) != self.rollout.as_ref().map(|(step, _)| *step) {
            self.rollout = newest.map(|(step, path)| (step, completions(&path)));
        }
        Ok(())
    }

    /// The damaged lines of each log, which were skipped.
    pub(crate) fn skipped(&self) -> impl Iterator<Item = &SkippedLines> {
        self.logs.iter().filter_map(LogTail::skipped)
    }

    /// The directory of the run.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this is a run of `xtrain grpo`.
    pub(crate) fn is_grpo(&self) -> bool {
        self.metrics.curve("reward").is_some() || self.config.as_ref().is_some_and(RunConfig::is_grpo)
    }

    /// Whether the run goes on. Without a recorded end, its process and the time of its logs decide.
    pub(crate) fn activity(&self) -> Activity {
        let end = self.session.as_ref().and_then(|session| session.end.as_ref());
        if let Some(end) = end {
            return match end.outcome {
                SessionOutcome::Done => Activity::Finished,
                SessionOutcome::Stopped => Activity::Stopped,
                SessionOutcome::Failed => Activity::Failed(end.message.clone()),
            };
        }
        let age = |name: &str| fs::metadata(self.path.join(name)).ok()?.modified().ok()?.elapsed().ok();
        let recent = ["metrics.jsonl", "timings.jsonl", "logs/session.json"]
            .into_iter()
            .any(|name| age(name).is_some_and(|age| age < RECENT));
        match &self.session {
            Some(session) if session.is_alive() || recent => Activity::Running,
            None if self.lines > 0 && self.steps().is_some_and(|steps| self.step() >= steps) => {
                Activity::Finished
            }
            None if recent => Activity::Running,
            None if self.lines == 0 && !has_checkpoint(&self.path) => Activity::Waiting,
            _ => Activity::Inactive,
        }
    }

    /// The number of steps that the configuration asks for. `None`: unknown.
    pub(crate) fn steps(&self) -> Option<u64> {
        let config = self.config.as_ref()?;
        let grpo = config.grpo.as_ref().filter(|_| self.is_grpo());
        Some(grpo.map_or(config.train.steps, |grpo| grpo.steps) as u64)
    }

    /// The last step of the log.
    pub(crate) fn step(&self) -> u64 {
        let steps = self.metrics.keys().filter_map(|key| self.metrics.curve(key)?.last());
        steps.map(|point| point.0 as u64).max().unwrap_or(0)
    }

    /// The remaining seconds, from the mean time of the last 50 steps. `None`: unknown.
    pub(crate) fn seconds_left(&self) -> Option<f64> {
        let (step, steps) = (self.step(), self.steps()?);
        let first = step.saturating_sub(50) as f64;
        let keys = self.timings.keys().filter(|key| self.is_phase(key));
        let recent = keys.flat_map(|key| self.timings.curve(key).into_iter().flatten());
        let seconds: f64 = recent.filter(|point| point.0 > first).filter_map(duration).sum();
        let each = seconds / (step as f64 - first);
        (each > 0.0 && each.is_finite()).then(|| each * steps.saturating_sub(step) as f64)
    }

    fn is_phase(&self, key: &str) -> bool {
        is_phase(key, self.is_grpo())
    }

    /// The total seconds of each phase, the largest first: `step`, `eval`, ... or `rollout`, `update`, ...
    pub(crate) fn time_split(&self) -> Vec<(String, f64)> {
        let keys = self.timings.keys().filter(|key| self.is_phase(key));
        let total = |key: &str| self.timings.curve(key).into_iter().flatten().filter_map(duration).sum();
        let mut parts: Vec<(String, f64)> =
            keys.map(|key| (key.trim_end_matches("_time").to_string(), total(key))).collect();
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        parts
    }
}

/// Whether this key of `timings.jsonl` is the time of a phase. `step_time` of `xtrain grpo` is their sum.
pub(crate) fn is_phase(key: &str, is_grpo: bool) -> bool {
    key.ends_with("_time") && !(is_grpo && key == "step_time")
}

/// The seconds of a point. `None`: no time, in a log that something else wrote.
fn duration(point: &(f64, f64)) -> Option<f64> {
    Some(point.1).filter(|seconds| seconds.is_finite() && *seconds >= 0.0)
}

/// The newest file of `rollouts/` and its step.
fn newest_rollout(run: &Path) -> Option<(u64, PathBuf)> {
    let files = fs::read_dir(run.join("rollouts")).ok()?.flatten();
    let step =
        |path: &Path| path.file_name()?.to_str()?.strip_prefix("step_")?.strip_suffix(".jsonl")?.parse().ok();
    files.filter_map(|file| Some((step(&file.path())?, file.path()))).max()
}

fn completions(path: &Path) -> Vec<Scored> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<RolloutLine<'_>>(line).ok());
    let scored = |line: RolloutLine<'_>| Scored {
        prompt: line.prompt.unwrap_or_default().into_owned(),
        completion: line.completion.unwrap_or_default().into_owned(),
        reward: line.reward,
    };
    lines.map(scored).collect()
}
