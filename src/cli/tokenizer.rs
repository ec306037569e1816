//! `xtrain tokenizer`: byte-level BPE from text.
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::CliError;

/// Commands of `xtrain tokenizer`.
#[derive(Debug, Clone, Subcommand)]
pub enum TokenizerCommand {
    /// Learns a byte-level BPE from text or JSONL; every text can be encoded with it.
    Train(TokenizerTrainArgs),
}

/// Flags of `xtrain tokenizer train`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  xtrain tokenizer train book.txt --vocab 4096 --out tokenizer.json")]
pub struct TokenizerTrainArgs {
    /// Text or JSONL files.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Tokens of the vocabulary, specials included; at least the 256 bytes.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(257..=1 << 22))]
    pub vocab: u32,
    /// Pairs that occur less often are not merged.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub min_frequency: u64,
    /// The file to write.
    #[arg(short, long, value_name = "FILE", default_value = "tokenizer.json")]
    pub out: PathBuf,
}

/// Learns the merges.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(command: &TokenizerCommand) -> Result<(), CliError> {
    match command {
        TokenizerCommand::Train(_) => Err(CliError::absent("tokenizer train")),
    }
}
