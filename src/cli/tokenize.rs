//! `xtrain tokenize`: converts text to token ids and back, and renders conversations.
use std::io::{IsTerminal as _, Read};
use std::path::{Path, PathBuf};

use clap::Args;

use super::common::token_id;
use super::input_file::{require_end, text_of};
use super::template::TemplateFlags;
use super::{CliError, Exit, out, source};
use crate::model::tokenizer::Tokenizer;
use crate::tensor::faults::{self, Fault};

mod messages;
mod print;

use messages::ChatOptions;
use print::{TokenizedText, print};

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Special tokens in the text are recognized; none are added, also no BOS token, with which the prompts of some models \
begin. The output has one line per token, with its id and its \
text (\\xNN for a byte that is not a whole character), followed by the counts.

With --chat, each line of input is a conversation: {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}, or \
only the list; \"tools\" next to \"messages\" are passed to the template. Tokens of the assistant, which fine-tuning \
trains on, are marked with *. --json prints one object per text: ids, pieces, tokens, bytes, characters; with --chat \
also text and assistant_mask, as apply_chat_template of transformers returns it.

Examples:
  xtrain tokenize 'Hello world'
  xtrain tokenize --tokenizer runs/shakespeare --file book.txt --json
  xtrain tokenize --tokenizer model.gguf --ids 72,105
  xtrain tokenize --tokenizer Qwen3-0.6B --chat --file messages.jsonl")]
pub(super) struct TokenizeArgs {
    /// Text [default: standard input].
    #[arg(value_name = "TEXT", conflicts_with_all = ["file", "ids"])]
    text: Option<String>,
    /// Read the text from a file; - is standard input.
    #[arg(short, long, value_name = "FILE", conflicts_with = "ids")]
    file: Option<PathBuf>,
    /// Token ids to decode, for example 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id)]
    ids: Option<Vec<u32>>,
    /// bytes, or the path of a tokenizer.json or of a model.
    #[arg(
        long,
        visible_short_alias = 'm',
        visible_alias = "model",
        value_name = "TOKENIZER",
        default_value = "bytes"
    )]
    tokenizer: String,
    /// Read one conversation per line and render it with the chat template.
    #[arg(long, conflicts_with = "ids")]
    chat: bool,
    /// Append the start of an assistant turn to each conversation.
    #[arg(long, requires = "chat")]
    add_generation_prompt: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    template: TemplateFlags,
}

pub(super) fn run(args: &TokenizeArgs) -> Result<(), CliError> {
    if !args.chat && (args.template.template.is_some() || !args.template.var.is_empty()) {
        let message = "--template and --var require --chat";
        return Err(CliError::new(Exit::Usage, message).hint("add --chat"));
    }
    assert!(!faults::on(Fault::CommandPanics), "a planted fault");
    let tokenizer = source::tokenizer(&args.tokenizer)?;
    if let Some(ids) = &args.ids {
        return decode(args, &tokenizer, ids);
    }
    let input = input(args)?;
    if args.chat {
        let &TokenizeArgs { ref template, add_generation_prompt, json, .. } = args;
        let options = ChatOptions { template, add_generation_prompt, json };
        return messages::run(&options, &tokenizer, &input.name, &input.text);
    }
    let ids = tokenizer.encode(&input.text)?;
    let tokenized = TokenizedText { text: &input.text, ids: &ids, mask: None, print_text: false };
    print(&tokenizer, &tokenized, args.json)
}

/// Input text and its source.
struct Input {
    /// The file, for error messages.
    name: String,
    text: String,
}

fn input(args: &TokenizeArgs) -> Result<Input, CliError> {
    if let Some(text) = &args.text {
        return Ok(Input { name: "the command line".into(), text: text.clone() });
    }
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    let name = file.map_or("standard input".to_string(), |file| file.display().to_string());
    let read = match file {
        Some(file) => {
            require_end(file)?;
            std::fs::read(file)
        }
        None => {
            if std::io::stdin().is_terminal() {
                eprintln!("reading the text from standard input; Ctrl-D ends the input");
            }
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
        }
    };
    let bytes = read.map_err(|error| CliError::io(Path::new(&name), &error))?;
    let text = text_of(Path::new(&name), bytes)?;
    Ok(Input { name, text })
}

fn decode(args: &TokenizeArgs, tokenizer: &Tokenizer, ids: &[u32]) -> Result<(), CliError> {
    let size = tokenizer.vocab_size();
    if let Some((at, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= size) {
        let message = format!("--ids: id {id} at index {at} is outside the vocabulary of {size}");
        return Err(CliError::new(Exit::Usage, message));
    }
    let text = tokenizer.decode(ids);
    if args.json {
        return print(tokenizer, &TokenizedText { text: &text, ids, mask: None, print_text: true }, true);
    }
    out::print(if text.ends_with('\n') { text } else { text + "\n" })
}
