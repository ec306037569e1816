//! `--epochs`: the length of a training run as passes over its data.
use toml::Value;

use super::common::number;
use super::exit::{CliError, Exit};
use crate::config::{Layer, Resolved};
use crate::report::units;
use crate::tensor::faults::{self, Fault};
use crate::training::DataLoader;

/// The flag.
const FLAG: &str = "--epochs";
/// The key that it sets.
const KEY: &str = "train.steps";
/// The largest number of steps.
const MAX_STEPS: f64 = (1u64 << 31) as f64;

/// A number of epochs: passes over the training data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Epochs(f64);

impl Epochs {
    /// Parses the number.
    pub(super) fn parse(text: &str) -> Result<Epochs, String> {
        number(text, |&epochs| epochs > 0.0 && f64::is_finite(epochs), "expected a number above 0")
            .map(Epochs)
    }

    /// A layer that stands for the unknown number of steps: the largest one, so that no other key exceeds it.
    pub(super) fn unknown() -> Layer {
        layer(MAX_STEPS as i64)
    }

    /// The layer with `ceil(epochs * windows / batch)` steps, where `windows` is the number of windows of `loader`.
    pub(super) fn layer(self, loader: &DataLoader, batch: usize) -> Result<Layer, CliError> {
        self.steps(loader.per_epoch(), batch).map(layer)
    }

    /// The configuration of a new run with the steps of [`Epochs::layer`]. `layers`: those that `resolved` was loaded from,
    /// for the place of an error.
    pub(super) fn of_new(
        self,
        resolved: &Resolved,
        loader: &DataLoader,
        layers: &[Layer],
    ) -> Result<Resolved, CliError> {
        let steps = self.steps(loader.per_epoch(), resolved.config.train.batch)?;
        let recomputed = resolved.recomputed(&[layer(steps)], layers).map_err(CliError::from);
        recomputed.map_err(|error| {
            error.or_hint(format_args!("{FLAG} {} is {}", self.0, units::many(steps as u64, "step")))
        })
    }

    /// `epochs * windows / batch`, rounded up.
    fn steps(self, windows: u64, batch: usize) -> Result<i64, CliError> {
        let exact = self.0 * windows as f64 / batch as f64;
        // 1.1 epochs of 10 windows are 11 windows, but 1.1 is slightly more in binary
        let least = exact * (1.0 - 1e-12);
        let steps = if faults::on(Fault::PartOfStepLeftOut) { least.floor() } else { least.ceil() }.max(1.0);
        if steps > MAX_STEPS {
            let message =
                format_args!("{FLAG} {:?}: expected at most {MAX_STEPS} steps, found {steps:?}", self.0);
            return Err(CliError::new(Exit::Usage, message));
        }
        Ok(steps as i64)
    }
}

fn layer(steps: i64) -> Layer {
    Layer::Flag { flag: FLAG, key: KEY, value: Value::Integer(steps) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_rounded_up() {
        let steps = |epochs, windows, batch| Epochs(epochs).steps(windows, batch).unwrap();
        assert_eq!(steps(1.0, 10, 5), 2);
        assert_eq!(steps(1.0, 11, 5), 3);
        assert_eq!(steps(3.0, 11, 5), 7);
        assert_eq!(steps(1.1, 10, 1), 11);
        assert_eq!(steps(0.1, 30, 1), 3);
        assert_eq!(steps(1e-9, 30, 1), 1);
        assert!(Epochs(1e9).steps(1 << 20, 1).is_err());
        assert!(["0", "-1", "nan", "inf", "two"].iter().all(|text| Epochs::parse(text).is_err()));
    }
}
