//! `xtrain tokenize`: text to ids, ids to text, messages to both.
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::template::TemplateFlags;
use super::{CliError, Exit, out, source};
use crate::model::tokenizer::Tokenizer;

mod messages;

/// Flags of `xtrain tokenize`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Special tokens that stand in the text are parsed; none are added. A line per token, with its id and its text \
(\\xNN for a byte of a split character), then the counts.

--chat takes a conversation a line: {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}, or the list alone; \
\"tools\" beside the messages go to the template. A token of the assistant, which fine-tuning learns, is marked \
with *. --json prints an object per text: ids, pieces, tokens, bytes, characters; with --chat also text and \
assistant_mask, as HF's apply_chat_template gives it.

Examples:
  xtrain tokenize 'Hello world'
  xtrain tokenize --tokenizer runs/shakespeare --file book.txt --json
  xtrain tokenize --tokenizer model.gguf --ids 72,105
  xtrain tokenize --tokenizer Qwen3-0.6B --chat --file messages.jsonl")]
pub struct TokenizeArgs {
    /// Text; without it and without --file or --ids, standard input.
    #[arg(value_name = "TEXT", conflicts_with_all = ["file", "ids"])]
    pub text: Option<String>,
    /// Reads the text from a file; `-` is standard input.
    #[arg(short, long, value_name = "FILE", conflicts_with = "ids")]
    pub file: Option<PathBuf>,
    /// Ids to turn into text, as 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub ids: Option<Vec<u32>>,
    /// `bytes`, a tokenizer.json, a model, or a GGUF file.
    #[arg(long, visible_alias = "model", value_name = "TOKENIZER", default_value = "bytes")]
    pub tokenizer: String,
    /// Takes a conversation a line and renders it with the chat template.
    #[arg(long, conflicts_with = "ids")]
    pub chat: bool,
    /// Ends each conversation with the beginning of the assistant's turn.
    #[arg(long, requires = "chat")]
    pub add_generation_prompt: bool,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
    /// How messages become text.
    #[command(flatten)]
    pub template: TemplateFlags,
}

/// What `--json` prints of a text.
#[derive(Serialize)]
struct Tokenized<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    ids: &'a [u32],
    pieces: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    assistant_mask: Option<Vec<u8>>,
    tokens: usize,
    bytes: usize,
    characters: usize,
}

/// Tokenises.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &TokenizeArgs) -> Result<(), CliError> {
    if !args.chat && (args.template.template.is_some() || !args.template.var.is_empty()) {
        let message = "--template and --var are of --chat, which is not given";
        return Err(CliError::new(Exit::Usage, message).hint("add --chat"));
    }
    let tokenizer = source::tokenizer(&args.tokenizer)?;
    if let Some(ids) = &args.ids {
        return to_text(args, &tokenizer, ids);
    }
    let (name, text) = input(args)?;
    if args.chat {
        return messages::run(args, &tokenizer, (&name, &text));
    }
    let ids = tokenizer.encode(&text)?;
    print(&tokenizer, &Shown { text: &text, ids: &ids, mask: None, is_chat: false }, args.json)
}

/// The text to tokenise, and where it is from.
fn input(args: &TokenizeArgs) -> Result<(String, String), CliError> {
    if let Some(text) = &args.text {
        return Ok(("the command line".into(), text.clone()));
    }
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    let name = file.map_or("standard input".to_string(), |file| file.display().to_string());
    let mut bytes = Vec::new();
    let read = match file {
        Some(file) => std::fs::read(file).map(|all| bytes = all),
        None => std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ()),
    };
    read.map_err(|error| CliError::io(Path::new(&name), &error))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok((name, text)),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            Err(CliError::new(Exit::Data, format_args!("{name}: want UTF-8 text, found other bytes at {at}")))
        }
    }
}

fn to_text(args: &TokenizeArgs, tokenizer: &Tokenizer, ids: &[u32]) -> Result<(), CliError> {
    let size = tokenizer.vocab_size();
    if let Some((at, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= size) {
        let message = format!("--ids: {id} at place {at} is not in the vocabulary of {size}");
        return Err(CliError::new(Exit::Usage, message));
    }
    let text = tokenizer.decode(ids);
    if args.json {
        return print(tokenizer, &Shown { text: &text, ids, mask: None, is_chat: true }, true);
    }
    out::print(if text.ends_with('\n') { text } else { text + "\n" })
}

/// A text that is shown.
struct Shown<'a> {
    text: &'a str,
    ids: &'a [u32],
    /// Which tokens are the assistant's, where that is known.
    mask: Option<&'a [bool]>,
    /// Whether the text is not what was given.
    is_chat: bool,
}

fn print(tokenizer: &Tokenizer, shown: &Shown<'_>, json: bool) -> Result<(), CliError> {
    let Shown { text, ids, mask, is_chat } = *shown;
    let pieces = ids.iter().map(|&id| tokenizer.decode(&[id]));
    let tokenized = Tokenized {
        text: is_chat.then_some(text),
        ids,
        pieces: pieces.collect(),
        assistant_mask: mask.map(|mask| mask.iter().map(|&inside| u8::from(inside)).collect()),
        tokens: ids.len(),
        bytes: text.len(),
        characters: text.chars().count(),
    };
    if json {
        return out::print_json(&tokenized);
    }
    let mut lines = String::new();
    for (at, &id) in ids.iter().enumerate() {
        let mark = if mask.is_some_and(|mask| mask[at]) { " *" } else { "" };
        lines += &format!("{id:>7}  {}{mark}\n", quoted(tokenizer.token_bytes(id)));
    }
    let said = mask.map(|mask| mask.iter().filter(|inside| **inside).count());
    let said = said.map(|n| format!(", {n} of the assistant")).unwrap_or_default();
    let (tokens, bytes, characters) = (ids.len(), tokenized.bytes, tokenized.characters);
    out::print(format!("{lines}{tokens} tokens{said}, {bytes} bytes, {characters} characters\n"))
}

/// Bytes as a literal: text as it is, but for control characters and bytes that are no text.
fn quoted(bytes: &[u8]) -> String {
    let mut shown = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' | '\0'..=' ' if c != ' ' => shown.extend(c.escape_default()),
                c if c.is_control() => shown.extend(c.escape_default()),
                c => shown.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| shown += &format!("\\x{byte:02x}"));
    }
    shown + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_as_a_literal() {
        assert_eq!(quoted("a \"b\"\n\\é\u{1b}".as_bytes()), "\"a \\\"b\\\"\\n\\\\é\\u{1b}\"");
        assert_eq!(quoted(b"\xf0\x9fz"), "\"\\xf0\\x9fz\"");
    }
}
