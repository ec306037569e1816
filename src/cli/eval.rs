//! `xtrain eval`: what a model makes of a file.
use std::path::PathBuf;

use clap::Args;

use super::CliError;
use super::common::Common;

/// Flags of `xtrain eval`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  xtrain eval runs/shakespeare --data examples/data/tinyshakespeare.txt
  xtrain eval runs/quickstart --task sums.jsonl --json")]
pub struct EvalArgs {
    /// A checkpoint's directory, or a run (its newest checkpoint).
    pub model: PathBuf,
    /// Text, JSONL or packed tokens: loss, perplexity, bits per byte.
    #[arg(long, value_name = "FILE", required_unless_present = "task")]
    pub data: Option<PathBuf>,
    /// JSONL with `prompt` and `answer`: the share of prompts that greedy decoding answers exactly.
    #[arg(long, value_name = "FILE")]
    pub task: Option<PathBuf>,
    /// Tokens of a window [default: the context it was trained with].
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
}

/// Measures the model.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &EvalArgs) -> Result<(), CliError> {
    args.common.check()?;
    Err(CliError::absent("eval"))
}
