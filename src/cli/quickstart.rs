//! `xtrain quickstart`: the whole job, on a corpus of its own.
use std::path::PathBuf;

use clap::Args;

use super::CliError;
use super::common::{Common, Seed};

/// Flags of `xtrain quickstart`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Makes a corpus of sums and small sentences, trains on it, answers sums it has not seen, rolls out eight
completions in one batch, and compares every number with the training forward's.

Examples:
  xtrain quickstart
  xtrain quickstart --seed 1 --threads 1")]
pub struct QuickstartArgs {
    /// Directory of the run.
    #[arg(long, value_name = "DIR", default_value = "runs/quickstart")]
    pub run: PathBuf,
    /// Sets one key of the configuration, as train.steps=500.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The seed.
    #[command(flatten)]
    pub seed: Seed,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
}

/// Trains, samples, rolls out, verifies.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &QuickstartArgs) -> Result<(), CliError> {
    args.common.check()?;
    Err(CliError::absent("quickstart"))
}
