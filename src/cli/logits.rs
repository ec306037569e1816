//! `xtrain logits`: the numbers themselves.
use std::path::PathBuf;

use clap::Args;

use super::CliError;
use super::common::Common;

/// Flags of `xtrain logits`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Writes a safetensors file with the tensor `logits` [T, V] in f32.

Example:
  xtrain logits runs/shakespeare --tokens 82,79,77,69,79,58 --out logits.safetensors")]
pub struct LogitsArgs {
    /// A checkpoint's directory, or a run (its newest checkpoint).
    pub model: PathBuf,
    /// Token ids, as 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    pub tokens: Vec<u32>,
    /// The file to write.
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
}

/// Writes the logits.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &LogitsArgs) -> Result<(), CliError> {
    args.common.check()?;
    Err(CliError::absent("logits"))
}
