//! `xtrain tokenizer`: trains byte-level BPE tokenizers.
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};

use super::atomic_file::AtomicFile;
use super::common::{Force, number};
use super::data_format::warn_of_syntax;
use super::input_file::require_end;
use super::{CliError, Exit, out, output_path};
use crate::model::chat::Message;
use crate::model::data::DataError;
use crate::model::data::jsonl::{self, Record};
use crate::model::tokenizer::Tokenizer;
use crate::report::units;

/// Parses a vocabulary size.
fn vocab(text: &str) -> Result<u32, String> {
    number(text, |n| (257..=1 << 19).contains(n), "expected a number from 257 to 524288")
}

/// Commands of `xtrain tokenizer`.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum TokenizerCommand {
    /// Train a byte-level BPE tokenizer on text or JSONL files.
    Train(TokenizerTrainArgs),
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  xtrain tokenizer train book.txt --vocab 4096 --out tokenizer.json
  xtrain tokenizer train chats.jsonl --special-token '<|im_start|>' --special-token '<|im_end|>'")]
pub(super) struct TokenizerTrainArgs {
    /// Text or JSONL training files.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Vocabulary size, including the 256 bytes and special tokens.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = vocab)]
    vocab: u32,
    /// A special token, in addition to <|endoftext|>, such as <|im_start|>: one token of its own in any text. May be
    /// repeated.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    special_token: Vec<String>,
    /// Output file.
    #[arg(short, long, value_name = "FILE", default_value = "tokenizer.json")]
    out: PathBuf,
    #[command(flatten)]
    force: Force,
}

/// Approximate size of a block of training text, in bytes.
const BLOCK: usize = 1 << 16;

pub(super) fn run(command: &TokenizerCommand) -> Result<(), CliError> {
    let TokenizerCommand::Train(args) = command;
    let specials: Vec<&str> = args.special_token.iter().map(String::as_str).collect();
    if let Some(at) = (0..specials.len()).find(|&at| specials[..at].contains(&specials[at])) {
        let message =
            format_args!("--special-token: expected each token once, found {:?} twice", specials[at]);
        return Err(CliError::new(Exit::Usage, message));
    }
    output_path::check_absent(&args.out, args.force)?;
    output_path::check_is_no_input(&args.out, &args.files)?;
    if !output_path::is_written_directly(&args.out) {
        drop(AtomicFile::create(&args.out)?); // before the training: the file can be written
    }
    let mut texts = Vec::new();
    for path in &args.files {
        read(path, &mut texts)?;
    }
    let bytes: usize = texts.iter().map(String::len).sum();
    if bytes == 0 {
        let files: Vec<String> = args.files.iter().map(|path| path.display().to_string()).collect();
        let message = format!("{}: expected text, found none in any record", files.join(", "));
        return Err(CliError::new(Exit::Data, message));
    }
    eprintln!("training on {}", units::many(bytes as u64, "byte"));
    let tokenizer = Tokenizer::train_bpe(texts.into_iter(), args.vocab as usize, &specials)?;
    if tokenizer.vocab_size() < args.vocab as usize {
        let (size, want) = (tokenizer.vocab_size(), args.vocab);
        eprintln!(
            "note: the vocabulary has {size} tokens instead of {want}: the text has no more pairs to merge"
        );
    }
    let (_, json) = tokenizer.files()[0];
    let mut file = AtomicFile::create(&args.out)?;
    file.write(json)?;
    file.finish()?;
    out::print(format!("wrote {}: vocabulary of {} tokens\n", args.out.display(), tokenizer.vocab_size()))
}

/// Appends the texts of a file: the texts of its records, or blocks of plain text.
fn read(path: &Path, texts: &mut Vec<String>) -> Result<(), CliError> {
    require_end(path)?;
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("jsonl") || e.eq_ignore_ascii_case("ndjson")) {
        return Ok(jsonl::records(path, |record, _| {
            match record {
                Record::Text(text) => texts.push(text),
                Record::Pair { prompt, completion } => texts.extend([prompt, completion]),
                Record::Chat(conversation) => {
                    texts.extend(conversation.messages.iter().flat_map(Message::texts));
                }
            }
            Ok(())
        })?);
    }
    let bytes = std::fs::read(path).map_err(|error| CliError::io(path, &error))?;
    let text = plain_text(path, bytes)?;
    warn_of_syntax(path);
    blocks(&text).for_each(|block| texts.push(block.to_string()));
    Ok(())
}

/// The text of a file that is not JSONL, as `xtrain prepare` accepts it: not empty, and without zero bytes.
fn plain_text(path: &Path, bytes: Vec<u8>) -> Result<String, DataError> {
    let file = path.to_path_buf();
    let text = String::from_utf8(bytes).map_err(|error| DataError::not_text(path, &error))?;
    let content = text.strip_prefix('\u{feff}').unwrap_or(&text);
    match text.find('\0') {
        Some(at) => Err(DataError::NotText { file, line: None, offset: at as u64, byte: 0 }),
        None if content.is_empty() => Err(DataError::Empty { file }),
        None if content.len() < text.len() => Ok(content.to_string()),
        None => Ok(text),
    }
}

/// Splits `text` into blocks of about [`BLOCK`] bytes. A block starts with a letter or digit at the start of a line,
/// because no token crosses such a boundary.
fn blocks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let bytes = rest.as_bytes();
        let fits = |&at: &usize| bytes[at - 1] == b'\n' && bytes[at].is_ascii_alphanumeric();
        let cut = (BLOCK..bytes.len()).find(fits).unwrap_or(bytes.len());
        let (block, after) = rest.split_at(cut);
        rest = after;
        (!block.is_empty()).then_some(block)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_text() {
        let text = |bytes: &[u8]| plain_text(Path::new("a.txt"), bytes.to_vec());
        assert_eq!(text(b"\xef\xbb\xbfa").unwrap(), "a");
        assert_eq!(text(b"a\xef\xbb\xbf").unwrap(), "a\u{feff}");
        assert!(matches!(text(b"\xef\xbb\xbf"), Err(DataError::Empty { .. })));
    }

    #[test]
    fn blocks_partition_the_text_and_start_at_lines() {
        let text = "Line one.\n\n  two\nthree\n".repeat(20_000);
        let all: Vec<&str> = blocks(&text).collect();
        assert!(all.len() > 3 && all.concat() == text);
        assert!(all.iter().skip(1).all(|b| b.as_bytes()[0].is_ascii_alphanumeric()));
        assert_eq!(blocks("").count(), 0);
    }
}
