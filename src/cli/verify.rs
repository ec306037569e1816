//! `xtrain verify`: rollouts against a naive recompute, by bits.
use std::path::PathBuf;

use clap::Args;

use super::CliError;
use super::common::{Common, Seed};

/// Flags of `xtrain verify`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Rolls the model out over caches, pages, chunks, batches and threads, recomputes every logit with the plain
training forward, and prints how many values were compared and how many bits differ. Exit code 1 on any.

Examples:
  xtrain verify runs/shakespeare
  xtrain verify runs/quickstart --prompts prompts.jsonl --max-new 64 --json")]
pub struct VerifyArgs {
    /// A checkpoint's directory, or a run (its newest checkpoint).
    pub model: PathBuf,
    /// JSONL with a prompt a line [default: prompts drawn from the seed].
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// New tokens of a rollout.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub max_new: usize,
    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The seed.
    #[command(flatten)]
    pub seed: Seed,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
}

/// Compares.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &VerifyArgs) -> Result<(), CliError> {
    args.common.check()?;
    Err(CliError::absent("verify"))
}
