//! `xtrain prepare`: text to packed tokens.
use std::path::PathBuf;

use clap::Args;

use super::CliError;

/// Flags of `xtrain prepare`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
A .jsonl file holds an object a line, with `text`, `messages`, or `prompt` and `completion`; any other
file is text.

Examples:
  xtrain prepare book.txt --out book.tokens
  xtrain prepare a.jsonl b.jsonl --tokenizer tokenizer.json --out corpus.tokens")]
pub struct PrepareArgs {
    /// Text or JSONL files, in order.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The file of tokens to write.
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// `bytes`, or the path of a tokenizer.json.
    #[arg(long, value_name = "TOKENIZER", default_value = "bytes")]
    pub tokenizer: String,
}

/// Packs the files.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(_args: &PrepareArgs) -> Result<(), CliError> {
    Err(CliError::absent("prepare"))
}
