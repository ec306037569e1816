//! Flags of `xtrain bench guard`.
use std::num::NonZeroUsize;

use clap::Args;

use crate::cli::common::{count, number};

#[derive(Debug, Clone, Args)]
pub(crate) struct GuardArgs {
    /// Number of rounds; each runs every workload and the fixed loop once.
    #[arg(long, value_name = "N", default_value = "50", value_parser = count)]
    pub(super) rounds: NonZeroUsize,
    /// Share of the committed time by which a workload may be slower.
    #[arg(long, value_name = "SHARE", default_value_t = 0.15, value_parser = tolerance)]
    pub(super) tolerance: f64,
    /// Print one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    number(text, |x| (0.0..=1e9).contains(x), "expected a number from 0 to 1e9")
}
