//! What the assistant said, found in any template.
use std::ops::Range;

use super::{ChatError, ChatTemplate, Message, Options, Rendered};

impl ChatTemplate {
    /// The text of `messages` and the bytes of it that the assistant said, in order.
    ///
    /// Where the template has `{% generation %}` blocks, they say it. Else a turn of the assistant is what the
    /// conversation up to it has more than the conversation before it with a generation prompt: what a model
    /// would have had to write, the end of the turn included. `add_generation_prompt` is not used.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`]; [`ChatError::Turn`] for a template without such blocks that writes a turn
    /// otherwise when more follows (as those that leave out earlier thoughts), or refuses the part before it.
    pub fn assistant(
        &self,
        messages: &[Message],
        options: &Options,
    ) -> Result<(String, Vec<Range<usize>>), ChatError> {
        let whole = Options { add_generation_prompt: false, ..options.clone() };
        let Rendered { text, generated } = self.render(messages, &whole)?;
        if let Some(ranges) = generated {
            return Ok((text, ranges));
        }
        let prompted = Options { add_generation_prompt: true, ..options.clone() };
        let mut ranges = Vec::new();
        for at in (0..messages.len()).filter(|&at| messages[at].role() == "assistant") {
            let before = self.part(at, &messages[..at], &prompted)?;
            let upto = match at + 1 == messages.len() {
                true => text.clone(),
                false => self.part(at, &messages[..=at], &whole)?,
            };
            if !upto.starts_with(&before) || !text.starts_with(&upto) {
                return Err(ChatError::Turn { at });
            }
            ranges.push(before.len()..upto.len());
        }
        Ok((text, ranges))
    }

    /// The text of a part of a conversation, which ends before or with the turn `at`; a template may refuse one.
    fn part(&self, at: usize, messages: &[Message], options: &Options) -> Result<String, ChatError> {
        match self.render(messages, options) {
            Ok(rendered) => Ok(rendered.text),
            Err(error @ ChatError::Limit { .. }) => Err(error),
            Err(_) => Err(ChatError::Turn { at }),
        }
    }
}
