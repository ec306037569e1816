//! `xtrain generate`: one continuation.
use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::CliError;
use super::common::{Common, Sampling, Seed};

/// Flags of `xtrain generate`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("start").required(true).args(["prompt", "tokens"]))]
#[command(after_help = "\
Text streams as it is drawn. --json prints one object: tokens (the new ids), logprobs, logprob_bits (hex),
finish_reason, timings.

Examples:
  xtrain generate runs/shakespeare --prompt 'ROMEO:' --max-new 200 --temperature 0.8
  xtrain generate runs/quickstart --tokens 49,50,43,51,52,61 --temperature 0 --json")]
pub struct GenerateArgs {
    /// A checkpoint's directory, or a run (its newest checkpoint).
    pub model: PathBuf,
    /// Text to continue.
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Token ids to continue, as 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub tokens: Option<Vec<u32>>,
    /// New tokens, at most.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub max_new: usize,
    /// Goes on after the end-of-text token.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
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

/// Continues the prompt.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &GenerateArgs) -> Result<(), CliError> {
    args.common.check()?;
    Err(CliError::absent("generate"))
}
