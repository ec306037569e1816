//! `xtrain prepare`: text to packed tokens.
use std::path::PathBuf;

use clap::Args;

use super::{CliError, Exit, out, source};
use crate::model::data;
use crate::report::{Progress, units};

/// Flags of `xtrain prepare`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
A .jsonl file holds an object a line, with `text`, or `prompt` and `completion`, or `messages`, which the \
tokenizer's chat template writes; any other file is text. `xtrain train --data book.tok` trains on what is \
written; of a prompt, or of what the assistant does not say, nothing is learnt.

Examples:
  xtrain prepare book.txt --out book.tok
  xtrain prepare a.jsonl b.jsonl --tokenizer tokenizer.json --out corpus.tok
  xtrain prepare chat.jsonl --tokenizer Qwen3-0.6B --out chat.tok")]
pub struct PrepareArgs {
    /// Text or JSONL files, in order.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The file of tokens to write, named *.tok.
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// `bytes`, or the path of a tokenizer.json or of a model.
    #[arg(long, value_name = "TOKENIZER", default_value = "bytes")]
    pub tokenizer: String,
}

/// Packs the files.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &PrepareArgs) -> Result<(), CliError> {
    if args.out.extension().is_none_or(|extension| extension != "tok") {
        let message = format!("--out: want a name that ends in .tok, got {}", args.out.display());
        return Err(CliError::new(Exit::Usage, message).hint("that is how train knows packed tokens"));
    }
    let tokenizer = source::tokenizer(&args.tokenizer)?;
    let bytes = args.files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|found| found.len());
    let mut bar = Progress::new("prepare", "B", bytes.sum(), 0);
    let prepared = data::prepare(&args.files, &args.out, &tokenizer, &mut |at| bar.at(at.bytes, ""))?;
    bar.finish();
    out::print(format!(
        "wrote {}: {} of {}, from {}\n",
        args.out.display(),
        units::many(prepared.tokens, "token"),
        units::many(prepared.documents, "document"),
        units::bytes(prepared.bytes),
    ))
}
