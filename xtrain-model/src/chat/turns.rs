//! Finding the assistant's text for any template.
use std::ops::Range;
use std::time::{Duration, Instant};

use xtrain_tensor::faults::{self, Fault};

use super::error::ChatError;
use super::message::Message;
use super::template::{ChatTemplate, Options, Rendered};

/// Maximum time for all renderings of one conversation: two for each turn of a template without blocks, and for each turn
/// of weight 0 of a template with blocks.
const TIME: Duration = Duration::from_secs(30);

impl ChatTemplate {
    /// Renders `messages`. Returns the text and the byte ranges of the assistant's text, in order.
    ///
    /// A template with `{% generation %}` blocks marks these ranges. Otherwise, an assistant turn is the difference
    /// between the conversation up to and including the turn and the conversation before it with a generation prompt:
    /// the text that a model would have generated, including the end of the turn. `add_generation_prompt` is ignored.
    ///
    /// Turns of weight 0 are left out ([`Message::is_trained`]). In a template with blocks, the blocks of such a turn are
    /// those that the conversation through the turn has, and the conversation before it does not have.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`]; [`ChatError::Turn`] for a template without such blocks that renders a turn
    /// differently when messages follow (for example, one that omits earlier reasoning), or that rejects the messages
    /// before it, with the reason, and for blocks of a turn of weight 0 that are not those of the whole conversation;
    /// [`ChatError::Limit`] if this takes more than 30 seconds.
    pub fn assistant(
        &self,
        messages: &[Message],
        options: &Options,
    ) -> Result<(String, Vec<Range<usize>>), ChatError> {
        self.assistant_after(0, messages, options)
    }

    /// [`ChatTemplate::assistant`] without the turns among the first `prompt` messages. If the template has
    /// `{% generation %}` blocks, the first blocks of the conversation, as many as these messages have alone, are left out.
    ///
    /// # Errors
    /// As [`ChatTemplate::assistant`].
    pub fn assistant_after(
        &self,
        prompt: usize,
        messages: &[Message],
        options: &Options,
    ) -> Result<(String, Vec<Range<usize>>), ChatError> {
        let prompt = prompt.min(messages.len());
        let complete = Options { add_generation_prompt: false, ..options.clone() };
        let Rendered { text, generated } = self.render(messages, &complete)?;
        let start = Instant::now();
        if let Some(mut ranges) = generated {
            let untrained = |at: &usize| messages[*at].role() == "assistant" && !messages[*at].is_trained();
            for at in (prompt..messages.len()).rev().filter(untrained) {
                require_time(start)?;
                let (_, before) = self.blocks(at, &messages[..at], &complete)?;
                let (start_of_text, through) = self.blocks(at, &messages[..=at], &complete)?;
                let is_same = text.starts_with(&start_of_text)
                    && ranges.starts_with(&through)
                    && through.starts_with(&before);
                if !is_same && !faults::on(Fault::BlocksOfTurnsCounted) {
                    return Err(ChatError::Turn { at, source: None });
                }
                let through = through.len().min(ranges.len());
                ranges.drain(before.len().min(through)..through);
            }
            let of_prompt = self.blocks(prompt, &messages[..prompt], &complete)?.1.len();
            ranges.drain(..of_prompt.min(ranges.len()));
            return Ok((text, ranges));
        }
        let prompted = Options { add_generation_prompt: true, ..options.clone() };
        let mut ranges = Vec::new();
        let trained = |at: &usize| messages[*at].role() == "assistant" && messages[*at].is_trained();
        for at in (prompt..messages.len()).filter(trained) {
            require_time(start)?;
            let before = self.render_prefix(at, &messages[..at], &prompted)?.text;
            let through = if at + 1 == messages.len() {
                text.clone()
            } else {
                self.render_prefix(at, &messages[..=at], &complete)?.text
            };
            if !through.starts_with(&before) || !text.starts_with(&through) {
                return Err(ChatError::Turn { at, source: None });
            }
            let with_prompt = faults::on(Fault::PromptLearntWithTurn);
            let end_of_last = ranges.last().map_or(0, |range: &Range<usize>| range.end);
            let start = if with_prompt { end_of_last } else { before.len() };
            ranges.push(start..through.len());
        }
        Ok((text, ranges))
    }

    /// The text of a prefix up to the end of its last `{% generation %}` block, and the blocks.
    fn blocks(
        &self,
        at: usize,
        messages: &[Message],
        options: &Options,
    ) -> Result<(String, Vec<Range<usize>>), ChatError> {
        if messages.is_empty() {
            return Ok((String::new(), Vec::new()));
        }
        let Rendered { mut text, generated } = self.render_prefix(at, messages, options)?;
        let blocks = generated.unwrap_or_default();
        text.truncate(blocks.last().map_or(0, |block| block.end));
        Ok((text, blocks))
    }

    /// Renders a prefix of a conversation that ends before or with turn `at`. A template may reject a prefix.
    fn render_prefix(
        &self,
        at: usize,
        messages: &[Message],
        options: &Options,
    ) -> Result<Rendered, ChatError> {
        match self.render(messages, options) {
            Ok(rendered) => Ok(rendered),
            Err(error @ ChatError::Limit { .. }) => Err(error),
            Err(error) => Err(ChatError::Turn { at, source: Some(Box::new(error)) }),
        }
    }
}

/// Fails if the turns of a conversation that began at `start` take too long.
fn require_time(start: Instant) -> Result<(), ChatError> {
    if start.elapsed() <= TIME {
        return Ok(());
    }
    Err(ChatError::Limit {
        what: "time",
        want: format!("at most {TIME:?} for all turns"),
        got: "more".into(),
    })
}
