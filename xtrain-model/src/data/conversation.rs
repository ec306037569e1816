//! Conversations as tokens with supervised assistant turns.
use xtrain_tensor::faults::{self, Fault};

use super::document_sink::{DocumentSink, Role};
use super::error::DataError;
use super::jsonl::{Conversation, Location};
use crate::chat::{ChatError, ChatTemplate, Options};
use crate::tokenizer::Tokenizer;

/// The chat template of a tokenizer and its options.
pub(super) struct ChatEncoder<'a> {
    tokenizer: &'a Tokenizer,
    template: ChatTemplate,
    options: Options,
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

    /// Appends a conversation to `sink`. Targets are the tokens of assistant turns after the prompt and the token that
    /// ends each of these turns. A separator follows an assistant turn without an end-of-text token at the end of the
    /// conversation.
    pub(super) fn encode(
        &self,
        Conversation { messages, prompt, tools }: &Conversation,
        location: &Location,
        sink: &mut impl DocumentSink,
    ) -> Result<(), DataError> {
        let prompt = if faults::on(Fault::AnswersOfPromptTrained) { 0 } else { *prompt };
        let options = Options { tools: tools.clone(), ..self.options.clone() };
        let found = self.template.assistant_after(prompt, messages, &options);
        let (text, parts) = found.map_err(|error| refused(location, &error))?;
        let (ids, mut mask) =
            self.tokenizer.encode_masked(&text, &parts).map_err(|error| location.not_encoded(&error))?;
        let eos = self.tokenizer.eos_ids();
        let eos = if faults::on(Fault::OnlyFirstEndTokenTrained) { &eos[..eos.len().min(1)] } else { eos };
        let is_eos = |id: &u32| eos.contains(id);
        // `{% generation %}` blocks may stop before the token that ends the turn
        for at in 1..ids.len() {
            let first = !is_eos(&ids[at - 1]) || faults::on(Fault::RepeatedEndTokensTrained);
            mask[at] |= mask[at - 1] && is_eos(&ids[at]) && first;
        }
        let end = mask.iter().rposition(|&target| target).map_or(0, |last| last + 1);
        let turn = mask[..end].iter().rposition(|&target| !target).map_or(0, |before| before + 1);
        let ends_with_assistant = messages.last().is_none_or(|message| message.role() == "assistant");
        let needs_separator = ends_with_assistant && !ids[turn..end].iter().any(is_eos);
        let mut at = 0;
        for run in mask.chunk_by(|a, b| a == b) {
            let role = if run[0] { Role::Target } else { Role::Context };
            sink.push(&ids[at..at + run.len()], role)?;
            at += run.len();
        }
        if needs_separator {
            return sink.end_document();
        }
        sink.cut();
        Ok(())
    }
}

fn refused(location: &Location, error: &ChatError) -> DataError {
    location.error("messages that the tokenizer's chat template accepts", error.to_string())
}
