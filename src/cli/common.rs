//! Flags shared by several commands.
use std::num::NonZeroUsize;
use std::str::FromStr;

use clap::Args;
use clap::builder::RangedU64ValueParser;

use super::device_name::DeviceName;
use super::exit::CliError;
use crate::config::{Layer, Precision};
use crate::decode::SampleOptions;
use crate::tensor::Device;
use crate::tensor::faults::{self, Fault};

/// Device flags. Only `--dtype` changes results; the others leave them bit-identical.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub(super) struct Common {
    /// Compute device: cpu, cpu:SIMD, cuda, cuda:N or emulated. cpu uses the fastest instruction set of the machine.
    /// cpu:SIMD uses the named one: portable, neon, avx2, avx512, avx512bf16 or amx. cuda selects GPU 0; with several
    /// processes on a machine, each process selects the next GPU.
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub(super) device: DeviceName,
    /// Compute dtype [default: the dtype of the run, otherwise f32].
    #[arg(long, value_name = "TYPE")]
    pub(super) dtype: Option<Precision>,
    /// CPU threads [default: number of available cores].
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(super) threads: Option<usize>,
}

/// The flag `--seed` of commands that have a configuration.
#[derive(Debug, Clone, Args)]
pub(super) struct Seed {
    /// Random seed, 0 to 2^64 - 1; alias for train.seed [default: 0].
    #[arg(long, value_name = "N", value_parser = whole)]
    pub(super) seed: Option<u64>,
}

/// The flag `--force` of commands with an output file.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Force {
    /// Replace the output file if it exists.
    #[arg(long)]
    pub(super) force: bool,
}

/// Sampling flags. The repetition penalty applies first, then the others in the order of the fields.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct Sampling {
    /// Softmax temperature; 0 = greedy.
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = temperature)]
    pub(super) temperature: f32,
    /// Top-k sampling: keep the K most likely tokens; 0 = keep all.
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = at_least_zero)]
    pub(super) top_k: usize,
    /// Top-p sampling: keep the smallest set of tokens with total probability P; 1 = keep all.
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = share)]
    pub(super) top_p: f32,
    /// Min-p sampling: keep tokens with at least P times the highest probability; 0 = keep all.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = share_or_zero)]
    pub(super) min_p: f32,
    /// Repetition penalty: divide the positive logits of tokens in prompt and output by X and multiply the negative
    /// ones; 1 = no penalty. Applies before the temperature.
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = penalty)]
    pub(super) repetition_penalty: f32,
}

/// The flag `--stop`.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct StopFlag {
    /// End the completion when its text contains TEXT; may be repeated. The printed text ends before TEXT. The ids and
    /// log-probabilities include all tokens up to the one that completes TEXT.
    #[arg(long, value_name = "TEXT", value_parser = stop_text)]
    pub(super) stop: Vec<String>,
}

/// Configuration flags.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Configuration")]
pub(super) struct Layers {
    /// TOML configuration file; may be repeated, later files override earlier ones.
    #[arg(short, long = "config", value_name = "FILE")]
    pub(super) config: Vec<std::path::PathBuf>,
    /// Override one configuration key, for example train.steps=500; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
}

impl Common {
    /// The CPU, for commands that read a model and compute nothing.
    pub(super) fn cpu() -> Common {
        Common { device: DeviceName::Cpu(None), dtype: None, threads: None }
    }

    /// Opens the device. The CPU has as many of the requested threads as the operating system grants.
    pub(super) fn open(&self) -> Result<Device, CliError> {
        self.device.open(self.threads())
    }

    pub(super) fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.unwrap_or_else(cores)
    }
}

impl Sampling {
    pub(super) fn options(&self) -> SampleOptions {
        SampleOptions {
            repetition_penalty: self.penalty(),
            ..SampleOptions::filtered(self.temperature, self.top_k, self.top_p, self.min_p)
        }
    }

    /// The repetition penalty. `None`: there is none.
    pub(super) fn penalty(&self) -> Option<f32> {
        (self.repetition_penalty != 1.0).then_some(self.repetition_penalty)
    }
}

impl Layers {
    /// The configuration layers, lowest first: files, then `--set`.
    pub(super) fn layers(&self) -> Vec<Layer> {
        let files = self.config.iter().cloned().map(Layer::File);
        files.chain(self.set.iter().cloned().map(Layer::Set)).collect()
    }
}

fn threads(text: &str) -> Result<usize, String> {
    number(text, |n| (1..=1024).contains(n), "expected a number from 1 to 1024")
}

pub(super) fn temperature(text: &str) -> Result<f32, String> {
    // a number that is too small for f32 is not 0
    let digits = text.split(['e', 'E']).next().unwrap_or(text);
    let is_zero = !digits.contains(|digit: char| ('1'..='9').contains(&digit));
    let is_zero = is_zero || faults::on(Fault::ColdTemperatureIsGreedy);
    let divides = |&t: &f32| t == 0.0 && is_zero || t >= SampleOptions::COLDEST && t.is_finite();
    number(text, divides, "expected 0, or a number of at least 1e-30")
}

pub(super) fn share(text: &str) -> Result<f32, String> {
    number(text, |&x| x > 0.0 && x <= 1.0, "expected a number above 0 and at most 1")
}

pub(super) fn share_or_zero(text: &str) -> Result<f32, String> {
    number(text, |x| (0.0..=1.0).contains(x), "expected a number from 0 to 1")
}

pub(super) fn penalty(text: &str) -> Result<f32, String> {
    number(text, |&x| x > 0.0 && f32::is_finite(x), "expected a number above 0")
}

fn stop_text(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("expected a text of at least one character".into()) } else { Ok(text.into()) }
}

/// Parses a number of new tokens.
pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    number(text, |&n| n >= 1, "expected a whole number of at least 1")
}

pub(super) fn at_least_zero(text: &str) -> Result<usize, String> {
    number(text, |_| true, "expected a whole number of at least 0")
}

/// Parses a token id.
pub(super) fn token_id(text: &str) -> Result<u32, String> {
    number(text, |_| true, "expected token ids, such as 82,79,77")
}

/// Parses a number of at least 1.
pub(super) fn count(text: &str) -> Result<NonZeroUsize, String> {
    number(text, |_| true, "expected a whole number of at least 1")
}

/// Parses a number from 1 to `max`.
pub(super) fn up_to(max: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=max)
}

/// Parses a whole number.
pub(super) fn whole(text: &str) -> Result<u64, String> {
    number(text, |_| true, "expected a whole number from 0 to 2^64 - 1")
}

/// Parses a number that fulfills a condition. A whole number may have an exponent: 1e3.
pub(super) fn number<T: FromStr>(text: &str, holds: impl Fn(&T) -> bool, want: &str) -> Result<T, String> {
    let number = text.parse().ok().or_else(|| without_exponent(text)?.parse().ok());
    number.filter(holds).ok_or_else(|| want.to_string())
}

/// The digits of a whole number with an exponent. `None`: it has none, is not whole, or is not exact in f64.
fn without_exponent(text: &str) -> Option<String> {
    let value: f64 = text.parse().ok().filter(|_| text.contains(['e', 'E']))?;
    (value.fract() == 0.0 && (0.0..9e15).contains(&value)).then(|| format!("{value:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temperature_is_0_or_divides() {
        for (text, want) in [("0", 0.0), ("-0.0", 0.0), ("0e5", 0.0), ("1e-30", 1e-30), ("0.5", 0.5)] {
            assert_eq!(temperature(text), Ok(want), "{text}");
        }
        for text in ["1e-31", "1e-46", "1e-400", "inf", "nan", "-1", ""] {
            assert!(temperature(text).is_err(), "{text}");
        }
        #[cfg(feature = "faults")]
        assert_eq!(faults::with(Fault::ColdTemperatureIsGreedy, || temperature("1e-46")), Ok(0.0));
    }
}
