//! `xtrain rollout`: many completions in one batch.
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use super::CliError;
use super::common::{Common, Sampling, Seed};

/// Flags of `xtrain rollout`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
A line in: {\"prompt\": \"12+34=\"} or {\"prompt_ids\": [49, 50]}. A line out per completion, with its ids,
log-probabilities and finish reason. Prompts are prefilled once and shared by their G completions.

Example:
  xtrain rollout runs/quickstart --prompts prompts.jsonl -n 8 --out completions.jsonl")]
pub struct RolloutArgs {
    /// A checkpoint's directory, or a run (its newest checkpoint).
    pub model: PathBuf,
    /// JSONL with a prompt a line; `-` is standard input.
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub prompts: PathBuf,
    /// Where completions go; `-` is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub out: PathBuf,
    /// Completions of each prompt.
    #[arg(short = 'n', long = "num-generations", value_name = "G", default_value = "1")]
    pub n: NonZeroUsize,
    /// New tokens of a completion, at most.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub max_new: usize,
    /// Goes on after the end-of-text token.
    #[arg(long)]
    pub ignore_eos: bool,
    /// The seed.
    #[command(flatten)]
    pub seed: Seed,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: Sampling,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
}

/// Completes the prompts.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &RolloutArgs) -> Result<(), CliError> {
    args.common.check()?;
    Err(CliError::absent("rollout"))
}
