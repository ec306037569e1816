//! `xtrain bench`: speed, as tables or JSON.
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::CliError;
use super::common::{Common, Layers, Seed};

/// Commands of `xtrain bench`.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Measures training steps: tokens per second, and where the time of a step goes.
    #[command(after_help = "\
Examples:
  xtrain bench train --set model.preset=tiny-1m
  xtrain bench train -c configs/shakespeare.toml --threads 1 --json")]
    Train(BenchArgs),
    /// Measures decoding: time to the first token, tokens per second, slope over the position.
    #[command(after_help = "\
Examples:
  xtrain bench decode --model runs/shakespeare --batch 32
  xtrain bench decode --set model.preset=tiny-3m --prompt-len 512 --max-new 128 --json")]
    Decode(BenchArgs),
    /// Measures the caches side by side: off, growing, contiguous, paged at n = 32, 128, 256, 1024.
    #[command(after_help = "\
Example:
  xtrain bench kv --set model.preset=tiny-1m")]
    Kv(BenchArgs),
}

/// Flags of every `xtrain bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// A checkpoint's directory or a run [default: random weights of the configured sizes].
    #[arg(long, value_name = "MODEL", conflicts_with = "config")]
    pub model: Option<PathBuf>,
    /// Sequences at once.
    #[arg(long, value_name = "N", default_value = "1")]
    pub batch: NonZeroUsize,
    /// Tokens of a prompt.
    #[arg(long, value_name = "TOKENS", default_value = "128")]
    pub prompt_len: NonZeroUsize,
    /// New tokens of a sequence.
    #[arg(long, value_name = "N", default_value = "128")]
    pub max_new: NonZeroUsize,
    /// Measurements, of which the median is shown.
    #[arg(long, value_name = "N", default_value = "5")]
    pub repeats: NonZeroUsize,
    /// Prints one JSON object with the raw samples.
    #[arg(long)]
    pub json: bool,
    /// The configuration.
    #[command(flatten)]
    pub layers: Layers,
    /// The seed.
    #[command(flatten)]
    pub seed: Seed,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
}

/// Measures.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(command: &BenchCommand) -> Result<(), CliError> {
    let (name, args) = match command {
        BenchCommand::Train(args) => ("bench train", args),
        BenchCommand::Decode(args) => ("bench decode", args),
        BenchCommand::Kv(args) => ("bench kv", args),
    };
    args.common.check()?;
    Err(CliError::absent(name))
}
