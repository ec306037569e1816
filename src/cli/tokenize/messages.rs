//! `xtrain tokenize --chat`: renders conversations, one per line.
use super::print::{TokenizedText, print};
use crate::cli::template::TemplateFlags;
use crate::cli::{CliError, Exit, out};
use crate::model::chat::{ChatError, ChatTemplate, Json, Message, Options};
use crate::model::data::jsonl::{Conversation, fields, tools};
use crate::model::tokenizer::Tokenizer;

const HINT: &str = "each line is {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}, or has such lists as \
    \"prompt\" and \"completion\"";

/// How conversations are rendered and printed.
pub(super) struct ChatOptions<'a> {
    pub(super) template: &'a TemplateFlags,
    pub(super) add_generation_prompt: bool,
    pub(super) json: bool,
}

/// Prints every conversation of `text`. `name` is the file, for error messages.
pub(super) fn run(
    chat: &ChatOptions<'_>,
    tokenizer: &Tokenizer,
    name: &str,
    text: &str,
) -> Result<(), CliError> {
    let (mut found, defaults) = (false, chat.template.options(tokenizer));
    // A tokenizer may have separate templates without and with tools; the file of --template serves both.
    let separate = chat.template.template.is_none();
    let mut templates: [Option<ChatTemplate>; 2] = [None, None];
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        found = true;
        let place = format!("{name}:{}", at + 1);
        let refuse = |error: ChatError| {
            let at_line = CliError::new(Exit::Data, format_args!("{place}: {error}"));
            if let ChatError::Message { .. } = error { at_line.hint(HINT) } else { at_line }
        };
        let Conversation { messages, prompt, tools } = parse(line).map_err(refuse)?;
        let template = &mut templates[usize::from(separate && tools.is_some())];
        let options = Options { tools, ..defaults.clone() };
        let template = match template {
            Some(template) => template,
            none => none.insert(chat.template.open(tokenizer, &options)?),
        };
        let options = Options { add_generation_prompt: chat.add_generation_prompt, ..options };
        let text = template.render(&messages, &options).map_err(refuse)?.text;
        let parts = match template.assistant_after(prompt, &messages, &options) {
            // The assistant turns precede a generation prompt.
            Ok((whole, parts)) => Some(parts).filter(|_| text.starts_with(&whole)),
            Err(error @ ChatError::Turn { .. }) => {
                eprintln!("note: no assistant_mask: {error}");
                None
            }
            Err(error) => return Err(refuse(error)),
        };
        let (ids, mask) = tokenizer.encode_masked(&text, parts.as_deref().unwrap_or_default())?;
        if !chat.json {
            out::print(&text)?;
            out::print(if text.ends_with('\n') { "" } else { "\n" })?;
        }
        let mask = parts.map(|_| &mask[..]);
        print(tokenizer, &TokenizedText { text: &text, ids: &ids, mask, print_text: true }, chat.json)?;
    }
    match found {
        true => Ok(()),
        false => Err(CliError::new(Exit::Data, format_args!("{name}: no conversations found")).hint(HINT)),
    }
}

/// The conversation of a line.
fn parse(line: &str) -> Result<Conversation, ChatError> {
    let json = Json::parse_unique(line)?;
    let tools = tools(&json)?;
    if let (Some(prompt), Some(completion)) = (json.get("prompt"), json.get("completion")) {
        return Ok(Conversation::in_parts(Message::list(&prompt)?, Message::list(&completion)?, tools));
    }
    match json.get("messages") {
        Some(list) => Ok(Conversation { messages: Message::list(&list)?, prompt: 0, tools }),
        None if json.kind() == "an object" => {
            let want = "a list, or an object with \"messages\", or with \"prompt\" and \"completion\"";
            let object = serde_json::from_str(line).unwrap_or_default();
            Err(ChatError::Message { want, got: fields(&object) })
        }
        None => Ok(Conversation { messages: Message::list(&json)?, prompt: 0, tools: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_a_line_has_twice_is_an_error() {
        let error = parse("{\"messages\":[],\n\"messages\":[]}").map(drop).unwrap_err().to_string();
        assert!(error.contains("the field `messages` twice at line 2"), "{error}");
    }

    #[test]
    fn a_line_is_a_list_of_messages_or_an_object_with_tools() {
        let list = "[{\"role\":\"user\",\"content\":\"a\"}]";
        for (line, want) in [
            (list.to_string(), (1, 0, false)),
            (format!("{{\"messages\":{list}}}"), (1, 0, false)),
            (format!("{{\"messages\":{list},\"tools\":null}}"), (1, 0, false)),
            (format!("{{\"messages\":{list},\"tools\":[]}}"), (1, 0, true)),
            (format!("{{\"prompt\":{list},\"completion\":{list},\"tools\":[]}}"), (2, 1, true)),
        ] {
            let Conversation { messages, prompt, tools } = parse(&line).unwrap();
            assert_eq!((messages.len(), prompt, tools.is_some()), want, "{line}");
            assert_eq!(messages[0].role(), "user");
        }
    }
}
