//! The metrics of a run, from its `metrics.jsonl`.
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use super::jsonl::{Lines, SkippedLines, object};
use super::{Error, Result};

/// All numbers of a log as curves over the steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metrics {
    curves: Vec<(String, Vec<(f64, f64)>)>,
    skipped: Option<SkippedLines>,
}

impl Metrics {
    /// Reads a log. A value that is not a number leaves a gap in its curve; NaN is written as `null`, because JSON
    /// has no NaN. Lines that are not objects with a whole number as `step` are skipped; see [`Metrics::skipped`].
    ///
    /// # Errors
    /// The file does not exist or cannot be read; it has no valid line.
    pub fn read(path: &Path) -> Result<Metrics> {
        let file = File::open(path).map_err(|error| Error::io(path, error))?;
        let (mut metrics, mut is_empty, mut first) = (Metrics::default(), true, None);
        for line in Lines::new(path, &file) {
            let line = line?;
            match object(path, &line) {
                Ok((object, step)) => {
                    metrics.add(step, object);
                    is_empty = false;
                }
                Err(error) => {
                    // A last line without a line break is still being written.
                    if line.finished {
                        SkippedLines::count(&mut metrics.skipped, path, line.number);
                    }
                    first = first.or(Some(error));
                }
            }
        }
        if is_empty {
            let reason = "the log is empty".to_string();
            return Err(first.unwrap_or(Error::Line { path: path.to_path_buf(), line: 1, reason }));
        }
        Ok(metrics)
    }

    /// The damaged lines that [`Metrics::read`] skipped. An unfinished last line is none.
    pub fn skipped(&self) -> Option<&SkippedLines> {
        self.skipped.as_ref()
    }

    /// The names of the curves in order of first appearance, alphabetical within a line.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.curves.iter().map(|curve| curve.0.as_str())
    }

    /// Steps and values of a curve. `None`: there is no curve with this name.
    pub fn curve(&self, key: &str) -> Option<&[(f64, f64)]> {
        self.curves.iter().find(|curve| curve.0 == key).map(|curve| curve.1.as_slice())
    }

    /// The steps in increasing order, each with its values.
    pub fn steps(&self) -> impl Iterator<Item = (u64, Vec<(&str, f64)>)> {
        let mut steps: BTreeMap<u64, Vec<(&str, f64)>> = BTreeMap::new();
        for (name, points) in &self.curves {
            points
                .iter()
                .for_each(|(step, value)| steps.entry(*step as u64).or_default().push((name, *value)));
        }
        steps.into_iter()
    }

    /// Adds the numbers of a line.
    pub(crate) fn add(&mut self, step: u64, fields: serde_json::Map<String, serde_json::Value>) {
        for (key, value) in fields {
            if let (true, Some(value)) = (key != "step", value.as_f64()) {
                self.push(key, (step as f64, value));
            }
        }
    }

    fn push(&mut self, key: String, point: (f64, f64)) {
        match self.curves.iter_mut().find(|curve| curve.0 == key) {
            Some(curve) => curve.1.push(point),
            None => self.curves.push((key, vec![point])),
        }
    }
}
