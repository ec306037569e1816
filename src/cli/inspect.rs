//! `xtrain inspect`: what a model is made of.
use std::path::PathBuf;

use clap::Args;

use super::CliError;
use super::common::{Common, Layers};

/// Flags of `xtrain inspect`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  xtrain inspect runs/shakespeare
  xtrain inspect --set model.preset=qwen3-0.6b --json")]
pub struct InspectArgs {
    /// A checkpoint's directory or a run [default: the configured sizes].
    #[arg(conflicts_with = "config")]
    pub model: Option<PathBuf>,
    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The configuration.
    #[command(flatten)]
    pub layers: Layers,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
}

/// Prints configuration, parameters, memory, bytes of cache per token.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &InspectArgs) -> Result<(), CliError> {
    args.common.check()?;
    Err(CliError::absent("inspect"))
}
