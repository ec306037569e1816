//! Conversations as tokens with supervised assistant turns.
use super::document_sink::Role;
use super::error::DataError;
use super::jsonl::Location;
use crate::chat::{ChatError, ChatTemplate, Json, Message, Options};
use crate::tokenizer::Tokenizer;

/// The chat template of a tokenizer and its options.
pub(super) struct ChatEncoder<'a> {
    tokenizer: &'a Tokenizer,
    template: ChatTemplate,
    options: Options,
}

/// The tokens of a conversation.
pub(super) struct EncodedChat {
    pub(super) tokens: Vec<(u32, Role)>,
    /// Whether the conversation needs a separator: it ends with an assistant turn without an end-of-text token.
    pub(super) needs_separator: bool,
}

impl<'a> ChatEncoder<'a> {
    /// An encoder with the default chat template of `tokenizer`. An invalid template is reported at the location of
    /// the record that needs it.
    pub(super) fn of(tokenizer: &'a Tokenizer, location: &Location) -> Result<ChatEncoder<'a>, DataError> {
        let options = Options::of(tokenizer);
        let template =
            ChatTemplate::of(tokenizer, None, &options).map_err(|error| refused(location, &error))?;
        Ok(ChatEncoder { tokenizer, template, options })
    }

    /// Encodes a conversation. Targets are the tokens of assistant turns and the token that ends each of these turns.
    pub(super) fn encode(
        &self,
        messages: &[Message],
        tools: Option<Json>,
        location: &Location,
    ) -> Result<EncodedChat, DataError> {
        let options = Options { tools, ..self.options.clone() };
        let (text, parts) =
            self.template.assistant(messages, &options).map_err(|error| refused(location, &error))?;
        let (ids, mut mask) =
            self.tokenizer.encode_masked(&text, &parts).map_err(|error| location.not_encoded(&error))?;
        let is_eos = |id: &u32| self.tokenizer.eos_ids().contains(id);
        // `{% generation %}` blocks may stop before the token that ends the turn
        for at in 1..ids.len() {
            mask[at] |= mask[at - 1] && is_eos(&ids[at]) && !is_eos(&ids[at - 1]);
        }
        let end = mask.iter().rposition(|&target| target).map_or(0, |last| last + 1);
        let turn = mask[..end].iter().rposition(|&target| !target).map_or(0, |before| before + 1);
        let ends_with_assistant = messages.last().is_none_or(|message| message.role() == "assistant");
        let needs_separator = ends_with_assistant && !ids[turn..end].iter().any(is_eos);
        let role = |target| if target { Role::Target } else { Role::Context };
        let tokens = ids.into_iter().zip(mask.into_iter().map(role)).collect();
        Ok(EncodedChat { tokens, needs_separator })
    }
}

fn refused(location: &Location, error: &ChatError) -> DataError {
    location.error("\"messages\" that the tokenizer's chat template accepts", error.to_string())
}
