//! What the assistant said, found in any template.
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{ChatError, ChatTemplate, Message, Options, Rendered};

/// What all renderings of one conversation may take: a template without blocks is rendered twice a turn.
const TIME: Duration = Duration::from_secs(30);

impl ChatTemplate {
    /// The text of `messages` and the bytes of it that the assistant said, in order.
    ///
    /// Where the template has `{% generation %}` blocks, they say it. Else a turn of the assistant is what the
    /// conversation up to it has more than the conversation before it with a generation prompt: what a model
    /// would have had to write, the end of the turn included. `add_generation_prompt` is not used.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`]; [`ChatError::Turn`] for a template without such blocks that writes a turn
    /// otherwise when more follows (as those that leave out earlier thoughts), or refuses the part before it;
    /// [`ChatError::Limit`] for a conversation of so many turns that this takes more than 30 seconds.
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
        let (mut ranges, begun) = (Vec::new(), Instant::now());
        for at in (0..messages.len()).filter(|&at| messages[at].role() == "assistant") {
            if begun.elapsed() > TIME {
                let (want, got) = (format!("at most {TIME:?} for all turns"), "more".into());
                return Err(ChatError::Limit { what: "time", want, got });
            }
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
