//! Conversations as tokens with supervised assistant turns.
use xtrain_tensor::faults::{self, Fault};

use super::document_sink::{DocumentSink, Role};
use super::error::DataError;
use super::jsonl::{Conversation, Location};
use crate::chat::{ChatError, Message, Options, Templates};
use crate::tokenizer::Tokenizer;

/// The chat templates of a tokenizer and their options.
pub(super) struct ChatEncoder<'a> {
    tokenizer: &'a Tokenizer,
    templates: Templates<'a>,
    options: Options,
}

impl<'a> ChatEncoder<'a> {
    pub(super) fn of(tokenizer: &'a Tokenizer) -> ChatEncoder<'a> {
        ChatEncoder { tokenizer, templates: Templates::of(tokenizer), options: Options::of(tokenizer) }
    }

    /// Appends a conversation to `sink`. Targets are the tokens of assistant turns after the prompt and the token that
    /// ends each of these turns. A separator follows an assistant turn without an end-of-text token at the end of the
    /// conversation. An invalid template is reported at the location of the record that needs it.
    pub(super) fn encode(
        &mut self,
        Conversation { messages, prompt, tools }: &Conversation,
        location: &Location,
        sink: &mut impl DocumentSink,
    ) -> Result<(), DataError> {
        let prompt = if faults::on(Fault::AnswersOfPromptTrained) { 0 } else { *prompt };
        let options = Options { tools: tools.clone(), ..self.options.clone() };
        let template = self.templates.get(&options).map_err(|error| refused(location, &error))?;
        let found = template.assistant_after(prompt, messages, &options);
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
        let is_target = |message: &Message| message.role() == "assistant" && message.is_trained();
        let ends_with_assistant = messages.last().is_none_or(is_target);
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
    match error {
        ChatError::Message { want, got } => location.error(want, got.as_str()),
        _ => location.error("messages that the tokenizer's chat template accepts", error.to_string()),
    }
}
