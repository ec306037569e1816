//! The metrics of a step, with the names of TRL.
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::batch::{Group, samples};

/// A line of `metrics.jsonl`: the step and its values in order. A pure function of configuration, seed and step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepMetrics {
    /// The optimizer step.
    pub step: u64,
    values: Vec<(String, f64)>,
}

impl StepMetrics {
    /// The metrics of `step`, without values.
    pub fn new(step: u64) -> StepMetrics {
        StepMetrics { step, values: Vec::new() }
    }

    /// Appends a value.
    pub fn push(&mut self, name: impl Into<String>, value: f64) {
        self.values.push((name.into(), value));
    }

    /// Appends values with a common prefix.
    pub fn extend(&mut self, values: impl IntoIterator<Item = (String, f64)>) {
        self.values.extend(values);
    }

    /// The value of this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
    }

    /// All names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.values.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

impl Serialize for StepMetrics {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(1 + self.values.len()))?;
        map.serialize_entry("step", &self.step)?;
        for (name, value) in &self.values {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// The numbers of sampled tokens of the completions of a batch: `completions/*`.
pub fn lengths(groups: &[Group]) -> [(&'static str, f64); 7] {
    let all: Vec<usize> = samples(groups).map(|(_, sample)| sample.sampled()).collect();
    let terminated: Vec<usize> =
        samples(groups).filter(|(_, s)| !s.truncated()).map(|(_, s)| s.sampled()).collect();
    let mean = |n: &[usize]| n.iter().sum::<usize>() as f64 / n.len().max(1) as f64;
    let least = |n: &[usize]| n.iter().min().map_or(0.0, |&n| n as f64);
    let greatest = |n: &[usize]| n.iter().max().map_or(0.0, |&n| n as f64);
    [
        ("completions/mean_length", mean(&all)),
        ("completions/min_length", least(&all)),
        ("completions/max_length", greatest(&all)),
        ("completions/mean_terminated_length", mean(&terminated)),
        ("completions/min_terminated_length", least(&terminated)),
        ("completions/max_terminated_length", greatest(&terminated)),
        ("completions/clipped_ratio", (all.len() - terminated.len()) as f64 / all.len().max(1) as f64),
    ]
}
