//! What was said so far, as messages and as the tokens that the model has seen.
use std::fmt;

use crate::cli::CliError;
use crate::decode::Completion;
use crate::model::chat::{ChatTemplate, Message, Options};
use crate::model::tokenizer::Tokenizer;

/// A conversation.
///
/// The tokens of a reply stay those that were drawn: a later turn appends to them and does not encode their
/// text again, which may have other tokens. So what the model's cache holds stays the beginning of what comes.
#[derive(Debug)]
pub(super) struct Conversation<'t> {
    tokenizer: &'t Tokenizer,
    template: ChatTemplate,
    options: Options,
    messages: Vec<Message>,
    /// How many of the messages stay: the system's.
    fixed: usize,
    /// The text that the model has seen, and its tokens.
    seen: (String, Vec<u32>),
    positions: usize,
}

/// A turn that waits for its reply.
#[derive(Debug)]
pub(super) struct ResolvedGeneration {
    text: String,
    pub(super) ids: Vec<u32>,
    messages: Vec<Message>,
    /// Messages that had to go.
    pub(super) forgotten: usize,
}

/// A message that fits into no conversation.
#[derive(Debug)]
pub(super) struct TooLong {
    tokens: usize,
    room: usize,
    positions: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooLong { tokens, room, positions } = self;
        write!(
            f,
            "the message is too long: with what stays before it {tokens} tokens, want at most {} (the model has \
             {positions} positions, {room} are for the reply)",
            positions - room
        )
    }
}

impl<'t> Conversation<'t> {
    pub(super) fn new(
        (tokenizer, template): (&'t Tokenizer, ChatTemplate),
        options: Options,
        system: Option<&str>,
        positions: usize,
    ) -> Conversation<'t> {
        let messages: Vec<Message> = system.map(|text| Message::new("system", text)).into_iter().collect();
        Conversation {
            tokenizer,
            template,
            options: Options { add_generation_prompt: true, ..options },
            fixed: messages.len(),
            messages,
            seen: (String::new(), Vec::new()),
            positions,
        }
    }

    /// Forgets all but the system's message.
    pub(super) fn reset(&mut self) {
        self.messages.truncate(self.fixed);
        self.seen = (String::new(), Vec::new());
    }

    /// The tokens of the conversation with `said` at its end and the beginning of a reply; the oldest turns are
    /// left out as far as that is needed for `room` more tokens. Nothing is said until [`answered`].
    ///
    /// # Errors
    /// [`TooLong`]; what the template refuses.
    ///
    /// [`answered`]: Conversation::answered
    pub(super) fn ask(&self, said: &str, room: usize) -> Result<ResolvedGeneration, CliError> {
        let mut messages = self.messages.clone();
        messages.push(Message::new("user", said));
        let all = messages.len();
        loop {
            let text = self.template.render(&messages, &self.options)?.text;
            let ids = self.ids(&text)?;
            if ids.len() + room <= self.positions && !ids.is_empty() {
                return Ok(ResolvedGeneration { text, ids, forgotten: all - messages.len(), messages });
            }
            let next = (self.fixed + 1..messages.len()).find(|&at| messages[at].role() == "user");
            let Some(next) = next else {
                return Err(TooLong { tokens: ids.len(), room, positions: self.positions }.into());
            };
            messages.drain(self.fixed..next);
        }
    }

    /// The tokens of `text`: those that the model has seen, as far as they are its beginning.
    fn ids(&self, text: &str) -> Result<Vec<u32>, CliError> {
        let (seen, ids) = &self.seen;
        match text.strip_prefix(seen.as_str()) {
            Some(rest) => Ok([&ids[..], &self.tokenizer.encode(rest)?].concat()),
            None => Ok(self.tokenizer.encode(text)?),
        }
    }

    /// Takes the turn and its reply into the conversation.
    pub(super) fn answered(&mut self, asked: ResolvedGeneration, reply: &Completion) {
        let ResolvedGeneration { mut text, mut ids, messages, .. } = asked;
        text += &self.tokenizer.decode(&reply.tokens);
        ids.extend(&reply.tokens);
        self.messages = messages;
        self.messages.push(Message::new("assistant", &reply.text(self.tokenizer)));
        self.seen = (text, ids);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::FinishReason;

    fn reply(tokens: &[u32], finish_reason: FinishReason) -> Completion {
        let (logprobs, processed_logprobs) = (vec![0.0; tokens.len()], vec![0.0; tokens.len()]);
        let tokens = tokens.to_vec();
        Completion { index: 0, id: 0, prompt_len: 0, tokens, logprobs, processed_logprobs, finish_reason }
    }

    fn talk<'t>(tokenizer: &'t Tokenizer, system: Option<&str>, positions: usize) -> Conversation<'t> {
        let options = Options::of(tokenizer);
        let template = ChatTemplate::of(tokenizer, None, &options).unwrap();
        Conversation::new((tokenizer, template), options, system, positions)
    }

    #[test]
    fn a_turn_begins_with_the_tokens_that_the_model_has_seen() {
        let bytes = Tokenizer::byte();
        let mut talk = talk(&bytes, None, 1000);
        let first = talk.ask("hi", 8).unwrap();
        assert_eq!(first.text, "user\nhi<|endoftext|>assistant\n");
        let seen = [&first.ids[..], b"yes".map(u32::from).as_slice(), &[256]].concat();
        talk.answered(first, &reply(&[121, 101, 115, 256], FinishReason::Eos));
        let second = talk.ask("ok", 8).unwrap();
        assert_eq!(
            second.text,
            "user\nhi<|endoftext|>assistant\nyes<|endoftext|>user\nok<|endoftext|>assistant\n"
        );
        assert_eq!(second.ids, bytes.encode(&second.text).unwrap());
        assert!(second.ids.starts_with(&seen));
        // a byte that is no text is drawn: its tokens stay, and are not the three of U+FFFD
        let seen = [&second.ids[..], &[0xff, 256]].concat();
        talk.answered(second, &reply(&[0xff, 256], FinishReason::Eos));
        let third = talk.ask("?", 8).unwrap();
        assert!(third.ids.starts_with(&seen) && third.text.contains('\u{fffd}'));
        // one that was stopped, without the end of text, is ended by the template
        let seen = [&third.ids[..], &[120]].concat();
        talk.answered(third, &reply(&[120], FinishReason::Stop));
        let fourth = talk.ask("!", 8).unwrap();
        assert!(fourth.ids.starts_with(&seen) && fourth.ids[seen.len()] == 256);
        talk.reset();
        assert_eq!(talk.ask("hi", 8).unwrap().text, "user\nhi<|endoftext|>assistant\n");
    }

    #[test]
    fn the_oldest_turns_go_first_and_the_system_stays() {
        let bytes = Tokenizer::byte();
        // system 10, a user's turn 6 + n, a reply 11 + n
        let mut talk = talk(&bytes, Some("S"), 60);
        let sizes: Vec<[usize; 2]> = (0..6)
            .map(|_| {
                let asked = talk.ask("abc", 5).unwrap();
                let n = [asked.ids.len(), asked.forgotten];
                assert!(asked.text.starts_with("system\nS<|endoftext|>user\nabc"), "{}", asked.text);
                talk.answered(asked, &reply(&[120, 256], FinishReason::Eos));
                n
            })
            .collect();
        assert_eq!(sizes, [[28, 0], [49, 0], [49, 2], [49, 2], [49, 2], [49, 2]]);
        let error = talk.ask(&"x".repeat(50), 5).unwrap_err().to_string();
        assert!(error.contains("75 tokens, want at most 55") && error.contains("60 positions"), "{error}");
        assert_eq!(talk.ask("abc", 5).unwrap().ids.len(), 49, "what was too long was not said");
    }
}
