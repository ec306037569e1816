//! The chat templates of a tokenizer, each parsed at its first use.
use super::error::ChatError;
use super::template::{ChatTemplate, Options};
use crate::tokenizer::Tokenizer;

/// The templates for conversations without and with tools, which may be the same one. `None`: not parsed yet.
pub(crate) struct Templates<'t> {
    tokenizer: &'t Tokenizer,
    parsed: [Option<ChatTemplate>; 2],
}

impl<'t> Templates<'t> {
    pub(crate) fn of(tokenizer: &'t Tokenizer) -> Templates<'t> {
        Templates { tokenizer, parsed: [None, None] }
    }

    /// The template for `options`, as [`ChatTemplate::of`].
    pub(crate) fn get(&mut self, options: &Options) -> Result<&ChatTemplate, ChatError> {
        match &mut self.parsed[usize::from(options.tools.is_some())] {
            Some(template) => Ok(template),
            none => Ok(none.insert(ChatTemplate::of(self.tokenizer, None, options)?)),
        }
    }
}
