//! Finding the assistant's text for any template.
use std::ops::Range;
use std::time::{Duration, Instant};

use xtrain_tensor::faults::{self, Fault};

use super::error::ChatError;
use super::message::Message;
use super::template::{ChatTemplate, Options, Rendered};

/// Maximum time for all renderings of one conversation. A template without blocks is rendered twice per turn.
const TIME: Duration = Duration::from_secs(30);

impl ChatTemplate {
    /// Renders `messages`. Returns the text and the byte ranges of the assistant's text, in order.
    ///
    /// A template with `{% generation %}` blocks marks these ranges. Otherwise, an assistant turn is the difference
    /// between the conversation up to and including the turn and the conversation before it with a generation prompt:
    /// the text that a model would have generated, including the end of the turn. `add_generation_prompt` is ignored.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`]; [`ChatError::Turn`] for a template without such blocks that renders a turn
    /// differently when messages follow (for example, one that omits earlier reasoning), or that rejects the messages
    /// before it, with the reason; [`ChatError::Limit`] if this takes more than 30 seconds.
    pub fn assistant(
        &self,
        messages: &[Message],
        options: &Options,
    ) -> Result<(String, Vec<Range<usize>>), ChatError> {
        self.assistant_after(0, messages, options)
    }

    /// [`ChatTemplate::assistant`] without the turns among the first `prompt` messages and those of weight 0. A template
    /// with `{% generation %}` blocks also renders the messages up to each of these turns, and those before it: the blocks
    /// of the turn are those that it adds.
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
                let [before, through] = [at, at + 1].map(|end| self.blocks(&messages[..end], &complete));
                let through = through?.min(ranges.len());
                ranges.drain(before?.min(through)..through);
            }
            ranges.drain(..self.blocks(&messages[..prompt], &complete)?.min(ranges.len()));
            return Ok((text, ranges));
        }
        let prompted = Options { add_generation_prompt: true, ..options.clone() };
        let mut ranges = Vec::new();
        let trained = |at: &usize| messages[*at].role() == "assistant" && messages[*at].is_trained();
        for at in (prompt..messages.len()).filter(trained) {
            require_time(start)?;
            let before = self.render_prefix(at, &messages[..at], &prompted)?;
            let through = if at + 1 == messages.len() {
                text.clone()
            } else {
                self.render_prefix(at, &messages[..=at], &complete)?
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

    /// Number of `{% generation %}` blocks of `messages`, the beginning of a conversation.
    fn blocks(&self, messages: &[Message], options: &Options) -> Result<usize, ChatError> {
        if messages.is_empty() {
            return Ok(0);
        }
        Ok(self.render(messages, options)?.generated.map_or(0, |blocks| blocks.len()))
    }

    /// Renders a prefix of a conversation that ends before or with turn `at`. A template may reject a prefix.
    fn render_prefix(&self, at: usize, messages: &[Message], options: &Options) -> Result<String, ChatError> {
        match self.render(messages, options) {
            Ok(rendered) => Ok(rendered.text),
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
