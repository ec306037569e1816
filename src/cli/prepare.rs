//! `xtrain prepare`: tokenizes files into a packed token file.
use std::path::PathBuf;

use clap::Args;

use super::common::Force;
use super::data_format::warn_of_syntax;
use super::input_file::require_end;
use super::{CliError, Exit, interrupt, out, output_path, source};
use crate::model::data::{self, NamedTokenizer};
use crate::report::{Progress, units};

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
A .jsonl file has one object per line, with `text`, with `prompt` and `completion`, or with `messages`, which are \
rendered with the tokenizer's chat template. Any other file is plain text. `xtrain train --data book.tok` trains on \
the result, with the tokenizer whose path it records. Prompts and the messages of other roles than the assistant do not contribute to the loss.

Examples:
  xtrain prepare book.txt --out book.tok
  xtrain prepare a.jsonl b.jsonl --tokenizer tokenizer.json --out corpus.tok
  xtrain prepare chat.jsonl --tokenizer Qwen3-0.6B --out chat.tok")]
pub(super) struct PrepareArgs {
    /// Text or JSONL files, in this order.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Output file; its name must end in .tok.
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    force: Force,
    /// bytes, or the path of a tokenizer.json or of a model.
    #[arg(long, value_name = "TOKENIZER", default_value = "bytes")]
    tokenizer: String,
}

pub(super) fn run(args: &PrepareArgs) -> Result<(), CliError> {
    if args.out.extension().is_none_or(|extension| extension != "tok") {
        let message = format!("--out: expected a name ending in .tok, found {}", args.out.display());
        return Err(CliError::new(Exit::Usage, message)
            .hint("xtrain train recognizes packed token files by this extension"));
    }
    if args.out.exists() && !args.out.is_file() {
        let message = format!("--out: expected the path of a file, found {}", args.out.display());
        return Err(CliError::new(Exit::Usage, message)
            .hint("packed token files cannot be written to a pipe, a device or a directory"));
    }
    args.files.iter().try_for_each(|file| require_end(file))?;
    output_path::check_absent(&args.out, args.force)?;
    output_path::check_is_no_input(&args.out, &args.files)?;
    let tokenizer = source::tokenizer(&args.tokenizer)?;
    let name = source::absolute_name(&args.tokenizer)?;
    let named = NamedTokenizer { name: &name, tokenizer: &tokenizer };
    let bytes = args.files.iter().filter_map(|file| Some(std::fs::metadata(file).ok()?.len())).sum();
    let mut bar = Progress::new("prepare", "B", bytes, 0);
    interrupt::remove_unfinished(&args.out, &args.out)?;
    let prepared = data::prepare(&args.files, &args.out, named, &mut |bytes| bar.at(bytes, ""))?;
    bar.finish();
    args.files.iter().for_each(|file| warn_of_syntax(file));
    out::print(format!(
        "wrote {}: {} from {} ({})\n",
        args.out.display(),
        units::many(prepared.tokens, "token"),
        units::many(prepared.documents, "document"),
        units::bytes(prepared.bytes),
    ))
}
