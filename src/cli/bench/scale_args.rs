//! Flags of `xtrain bench scale`.
use clap::Args;

use super::shared::Shared;
use crate::cli::common::{number, up_to};

#[derive(Debug, Clone, Args)]
pub(crate) struct ScaleArgs {
    /// Number of measured steps, after two warmup steps.
    #[arg(long, value_name = "N", default_value = "5", value_parser = up_to(1 << 20))]
    pub(super) steps: usize,
    /// Estimate the step for 1, 2, 4, ..., 4096 processes.
    #[arg(long)]
    pub(super) estimate: bool,
    /// Latency of a message, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 20.0, value_parser = non_negative)]
    pub(super) latency_us: f64,
    /// Bandwidth of a process in each direction, in 10^9 bytes per second.
    #[arg(long, value_name = "GB/S", default_value_t = 1.0, value_parser = positive)]
    pub(super) bandwidth: f64,
    #[command(flatten)]
    pub(super) shared: Shared,
}

fn non_negative(text: &str) -> Result<f64, String> {
    number(text, |x| (0.0..=1e9).contains(x), "expected a number from 0 to 1e9")
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |x| (1e-6..=1e9).contains(x), "expected a number from 1e-6 to 1e9")
}
