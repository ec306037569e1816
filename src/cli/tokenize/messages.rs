//! `xtrain tokenize --chat`: conversations, a line each.
use super::{CliError, Exit, Shown, TokenizeArgs, print};
use crate::model::chat::{ChatError, ChatTemplate, Json, Message, Options};
use crate::model::tokenizer::Tokenizer;

const HINT: &str = "a line is {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}";

/// Prints every conversation of `text`, which is from `name`.
pub(super) fn run(
    args: &TokenizeArgs,
    tokenizer: &Tokenizer,
    (name, text): (&str, &str),
) -> Result<(), CliError> {
    let (mut seen, usual) = (false, args.template.options(tokenizer));
    // without tools, and with them: a tokenizer may have a template of its own for those, a file is for both
    let two = args.template.template.is_none();
    let mut templates: [Option<ChatTemplate>; 2] = [None, None];
    for (at, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        seen = true;
        let place = format!("{name}:{}", at + 1);
        let refuse = |error: ChatError| {
            let of_line = CliError::new(Exit::Data, format_args!("{place}: {error}"));
            if let ChatError::Message { .. } = error { of_line.hint(HINT) } else { of_line }
        };
        let (messages, tools) = parse(line).map_err(refuse)?;
        let template = &mut templates[usize::from(two && tools.is_some())];
        let options = Options { tools, ..usual.clone() };
        let template = match template {
            Some(template) => template,
            none => none.insert(args.template.open(tokenizer, &options)?),
        };
        conversation(args, (tokenizer, template), (&messages, options)).map_err(|error| match error {
            Error::Chat(error) => refuse(error),
            Error::Cli(error) => error,
        })?;
    }
    match seen {
        true => Ok(()),
        false => Err(CliError::new(Exit::Data, format_args!("{name}: no conversation in it")).hint(HINT)),
    }
}

enum Error {
    Chat(ChatError),
    Cli(CliError),
}

impl From<ChatError> for Error {
    fn from(error: ChatError) -> Error {
        Error::Chat(error)
    }
}

/// The messages of a line, and the tools beside them.
fn parse(line: &str) -> Result<(Vec<Message>, Option<Json>), ChatError> {
    let json = Json::parse(line)?;
    match json.get("messages") {
        Some(list) => Ok((Message::list(&list)?, json.get("tools").filter(|tools| tools.kind() != "null"))),
        None => Ok((Message::list(&json)?, None)),
    }
}

fn conversation(
    args: &TokenizeArgs,
    (tokenizer, template): (&Tokenizer, &ChatTemplate),
    (messages, options): (&[Message], Options),
) -> Result<(), Error> {
    let options = Options { add_generation_prompt: args.add_generation_prompt, ..options };
    let text = template.render(messages, &options)?.text;
    let parts = match template.assistant(messages, &options) {
        // what the assistant said stands before a generation prompt
        Ok((whole, parts)) if text.starts_with(&whole) => Some(parts),
        Ok(_) => None,
        Err(error @ ChatError::Turn { .. }) => {
            eprintln!("note: no assistant_mask: {error}");
            None
        }
        Err(error) => return Err(error.into()),
    };
    let encoded = tokenizer.encode_masked(&text, parts.as_deref().unwrap_or_default());
    let (ids, mask) = encoded.map_err(|error| Error::Cli(error.into()))?;
    let mask = parts.map(|_| &mask[..]);
    let shown = Shown { text: &text, ids: &ids, mask, is_chat: true };
    if !args.json {
        super::out::print(&text).map_err(Error::Cli)?;
        let end = if text.ends_with('\n') { "" } else { "\n" };
        super::out::print(end).map_err(Error::Cli)?;
    }
    print(tokenizer, &shown, args.json).map_err(Error::Cli)
}
