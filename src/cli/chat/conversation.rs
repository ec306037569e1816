//! The messages of a conversation and their tokens.
use super::reply::{Reply, ReplyEnd};
use crate::cli::exit::{CliError, Exit};
use crate::model::chat::{ChatTemplate, Message, Options};
use crate::model::tokenizer::Tokenizer;

/// The tokens of a reply are kept as they were sampled. A later turn appends to them instead of encoding their text
/// again, which could yield other tokens. So the contents of the KV cache remain a prefix of the next prompt.
#[derive(Debug)]
pub(super) struct Conversation<'t> {
    tokenizer: &'t Tokenizer,
    template: ChatTemplate,
    options: Options,
    messages: Vec<Message>,
    /// Number of messages that are never dropped: the system prompt.
    pinned: usize,
    /// Text that the model has processed.
    text: String,
    ids: Vec<u32>,
    context: usize,
}

/// A user turn with its prompt, before the reply.
#[derive(Debug)]
pub(super) struct PendingTurn {
    text: String,
    pub(super) ids: Vec<u32>,
    messages: Vec<Message>,
    /// Number of old messages that were dropped.
    pub(super) dropped: usize,
}

impl<'t> Conversation<'t> {
    pub(super) fn new(
        tokenizer: &'t Tokenizer,
        template: ChatTemplate,
        options: Options,
        system: Option<&str>,
        context: usize,
    ) -> Conversation<'t> {
        let messages: Vec<Message> = system.map(|text| Message::new("system", text)).into_iter().collect();
        Conversation {
            tokenizer,
            template,
            options: Options { add_generation_prompt: true, ..options },
            pinned: messages.len(),
            messages,
            text: String::new(),
            ids: Vec::new(),
            context,
        }
    }

    /// Removes all messages except the system prompt.
    pub(super) fn reset(&mut self) {
        self.messages.truncate(self.pinned);
        self.text.clear();
        self.ids.clear();
    }

    /// Renders the conversation with `message` and the start of a reply. Drops the oldest turns as needed to leave
    /// `reserved` tokens for the reply. The conversation does not change until [`Conversation::commit`]. Fails if the
    /// message does not fit in the context.
    pub(super) fn prepare_turn(&self, message: &str, reserved: usize) -> Result<PendingTurn, CliError> {
        let mut messages = self.messages.clone();
        messages.push(Message::new("user", message));
        let total = messages.len();
        loop {
            let text = self.template.render(&messages, &self.options)?.text;
            let ids = self.encode(&text)?;
            if ids.len() + reserved <= self.context && !ids.is_empty() {
                return Ok(PendingTurn { text, ids, dropped: total - messages.len(), messages });
            }
            let next_turn = (self.pinned + 1..messages.len()).find(|&at| messages[at].role() == "user");
            let Some(next_turn) = next_turn else {
                if ids.is_empty() {
                    let message =
                        "expected a prompt, found a chat template that gives no text for the messages";
                    return Err(CliError::new(Exit::Data, message).hint("choose another one with --template"));
                }
                let (tokens, context, room) = (ids.len(), self.context, self.context - reserved);
                let what = if self.fits_without_message(room) { "message" } else { "system prompt" };
                let message = format_args!(
                    "the {what} is too long: the prompt has {tokens} tokens, expected at most {room} (context \
                     {context}, of which {reserved} are reserved for the reply)"
                );
                return Err(CliError::new(Exit::Data, message));
            };
            messages.drain(self.pinned..next_turn);
        }
    }

    /// Whether no message fits, because the system prompt leaves no room for it and a reply of `reserved` tokens.
    pub(super) fn is_system_prompt_too_long(&self, reserved: usize) -> bool {
        !self.fits_without_message(self.context - reserved)
    }

    /// Whether a turn with an empty message has at most `room` tokens. True without a system prompt.
    fn fits_without_message(&self, room: usize) -> bool {
        let messages = [&self.messages[..self.pinned], &[Message::new("user", "")]].concat();
        let rendered = self.template.render(&messages, &self.options).ok();
        let ids = rendered.and_then(|rendered| self.tokenizer.encode(&rendered.text).ok());
        self.pinned == 0 || ids.is_none_or(|ids| ids.len() <= room)
    }

    /// Encodes `text`. If it starts with the processed text, the tokens of that prefix are reused.
    fn encode(&self, text: &str) -> Result<Vec<u32>, CliError> {
        match text.strip_prefix(self.text.as_str()) {
            Some(rest) if !self.text.is_empty() => {
                Ok([&self.ids[..], &self.tokenizer.encode_continuation(rest)?].concat())
            }
            _ => Ok(self.tokenizer.encode(text)?),
        }
    }

    /// Adds the turn and its reply to the conversation. The tokens of a reply that ended at a stop text have more text
    /// than the message: the next turn encodes its text again.
    pub(super) fn commit(&mut self, turn: PendingTurn, reply: &Reply) {
        let PendingTurn { mut text, mut ids, messages, .. } = turn;
        if reply.end != ReplyEnd::StopText {
            text += &self.tokenizer.decode_continuation(&reply.completion.tokens);
            ids.extend(&reply.completion.tokens);
        }
        self.messages = messages;
        self.messages.push(Message::new("assistant", &reply.text));
        (self.text, self.ids) = (text, ids);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Completion, FinishReason};

    fn reply(tokens: &[u32], finish_reason: FinishReason) -> Reply {
        let (logprobs, processed_logprobs) = (vec![0.0; tokens.len()], vec![0.0; tokens.len()]);
        let tokens = tokens.to_vec();
        let completion = Completion {
            index: 0,
            id: 0,
            prompt_len: 0,
            tokens,
            logprobs,
            processed_logprobs,
            top_logprobs: Vec::new(),
            finish_reason,
        };
        let text = completion.text(&Tokenizer::byte());
        Reply { text, completion, end: ReplyEnd::Finished, cached_tokens: 0 }
    }

    fn conversation<'t>(tokenizer: &'t Tokenizer, system: Option<&str>, context: usize) -> Conversation<'t> {
        let options = Options::of(tokenizer);
        let template = ChatTemplate::of(tokenizer, None, &options).unwrap();
        Conversation::new(tokenizer, template, options, system, context)
    }

    #[test]
    fn a_prompt_starts_with_the_tokens_of_earlier_turns() {
        let bytes = Tokenizer::byte();
        let mut chat = conversation(&bytes, None, 1000);
        let first = chat.prepare_turn("hi", 8).unwrap();
        assert_eq!(first.text, "user\nhi<|endoftext|>assistant\n");
        let seen = [&first.ids[..], b"yes".map(u32::from).as_slice(), &[256]].concat();
        chat.commit(first, &reply(&[121, 101, 115, 256], FinishReason::Eos));
        let second = chat.prepare_turn("ok", 8).unwrap();
        assert_eq!(
            second.text,
            "user\nhi<|endoftext|>assistant\nyes<|endoftext|>user\nok<|endoftext|>assistant\n"
        );
        assert_eq!(second.ids, bytes.encode(&second.text).unwrap());
        assert!(second.ids.starts_with(&seen));
        // The reply has a byte that is not valid UTF-8: its token is kept, not replaced by the three of U+FFFD.
        let seen = [&second.ids[..], &[0xff, 256]].concat();
        chat.commit(second, &reply(&[0xff, 256], FinishReason::Eos));
        let third = chat.prepare_turn("?", 8).unwrap();
        assert!(third.ids.starts_with(&seen) && third.text.contains('\u{fffd}'));
        // The template ends a reply that was stopped before its end-of-text token.
        let seen = [&third.ids[..], &[120]].concat();
        chat.commit(third, &reply(&[120], FinishReason::Stop));
        let fourth = chat.prepare_turn("!", 8).unwrap();
        assert!(fourth.ids.starts_with(&seen) && fourth.ids[seen.len()] == 256);
        // A reply that a stop text ended is encoded again, without the stop text.
        let seen = fourth.ids.clone();
        let stopped =
            Reply { text: "ab".into(), end: ReplyEnd::StopText, ..reply(&[97, 98, 33], FinishReason::Stop) };
        chat.commit(fourth, &stopped);
        let fifth = chat.prepare_turn(".", 8).unwrap();
        assert_eq!(
            fifth.ids,
            [&seen[..], &bytes.encode("ab<|endoftext|>user\n.<|endoftext|>assistant\n").unwrap()].concat()
        );
        chat.reset();
        assert_eq!(chat.prepare_turn("hi", 8).unwrap().text, "user\nhi<|endoftext|>assistant\n");
    }

    #[test]
    fn the_oldest_turns_are_dropped_and_the_system_prompt_is_kept() {
        let bytes = Tokenizer::byte();
        // Tokens: system prompt 10, user turn 6 + n, reply 11 + n.
        let mut chat = conversation(&bytes, Some("S"), 60);
        let sizes: Vec<[usize; 2]> = (0..6)
            .map(|_| {
                let turn = chat.prepare_turn("abc", 5).unwrap();
                let counts = [turn.ids.len(), turn.dropped];
                assert!(turn.text.starts_with("system\nS<|endoftext|>user\nabc"), "{}", turn.text);
                chat.commit(turn, &reply(&[120, 256], FinishReason::Eos));
                counts
            })
            .collect();
        assert_eq!(sizes, [[28, 0], [49, 0], [49, 2], [49, 2], [49, 2], [49, 2]]);
        let error = chat.prepare_turn(&"x".repeat(50), 5).unwrap_err().to_string();
        assert!(error.contains("75 tokens, expected at most 55") && error.contains("context 60"), "{error}");
        assert_eq!(
            chat.prepare_turn("abc", 5).unwrap().ids.len(),
            49,
            "the message that was too long is not part of the conversation"
        );
        assert!(error.contains("the message is too long"), "{error}");
        let error = conversation(&bytes, Some(&"S".repeat(60)), 60).prepare_turn("a", 5).unwrap_err();
        assert!(error.to_string().contains("the system prompt is too long"), "{error}");
    }
}
