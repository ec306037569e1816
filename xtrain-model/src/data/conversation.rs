//! A conversation as tokens of which some are to be learnt.
use super::jsonl::Place;
use super::{DataError, Role};
use crate::chat::{ChatError, ChatTemplate, Json, Message, Options};
use crate::tokenizer::Tokenizer;

/// The chat template of a tokenizer, with what it is given.
pub(super) struct Chat<'a> {
    tokenizer: &'a Tokenizer,
    template: ChatTemplate,
    options: Options,
}

/// Whether a last turn of the assistant ends with a token that ends a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Learnt,
    Missing,
}

impl<'a> Chat<'a> {
    /// # Errors
    /// A template that cannot be read; the error is of the row that asks for it.
    pub(super) fn of(tokenizer: &'a Tokenizer, place: &Place) -> Result<Chat<'a>, DataError> {
        let options = Options::of(tokenizer);
        let template = ChatTemplate::of(tokenizer, None, &options).map_err(|error| refused(place, &error))?;
        Ok(Chat { tokenizer, template, options })
    }

    /// The tokens of a conversation: what the assistant says is to be learnt, and the token that ends its turn.
    ///
    /// # Errors
    /// Messages that the template refuses.
    pub(super) fn encode(
        &self,
        (messages, tools): (&[Message], Option<Json>),
        place: &Place,
    ) -> Result<(Vec<(u32, Role)>, Ending), DataError> {
        let options = Options { tools, ..self.options.clone() };
        let (text, parts) =
            self.template.assistant(messages, &options).map_err(|error| refused(place, &error))?;
        let (ids, mut learnt) =
            self.tokenizer.encode_masked(&text, &parts).map_err(|refused| place.not_encoded(&refused))?;
        let ends = |id: &u32| self.tokenizer.eos_ids().contains(id);
        // `{% generation %}` blocks that stop before the token that ends the turn
        for at in 1..ids.len() {
            learnt[at] |= learnt[at - 1] && ends(&ids[at]) && !ends(&ids[at - 1]);
        }
        let last = learnt.iter().rposition(|&learnt| learnt).map_or(0, |last| last + 1);
        let turn = learnt[..last].iter().rposition(|&learnt| !learnt).map_or(0, |before| before + 1);
        // after somebody else's words nothing is missing
        let others = messages.last().is_some_and(|message| message.role() != "assistant");
        let done = others || ids[turn..last].iter().any(ends);
        let ending = if done { Ending::Learnt } else { Ending::Missing };
        let role = |learnt| if learnt { Role::Learnt } else { Role::Read };
        Ok((ids.into_iter().zip(learnt.into_iter().map(role)).collect(), ending))
    }
}

fn refused(place: &Place, error: &ChatError) -> DataError {
    place.error(("\"messages\" that the tokenizer's chat template takes", error.to_string()))
}
