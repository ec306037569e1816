//! Generates, streams and prints the replies.
use serde::Serialize;

use super::signals::ChatSignals;
use crate::cli::{CliError, out};
use crate::decode::{Completion, Engine, FinishReason, Request};
use crate::model::tokenizer::Tokenizer;
use crate::report::printable;

/// How replies are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    /// On a terminal, token by token.
    Stream,
    /// One line of text per reply.
    Line,
    /// One JSON object per reply.
    Json,
}

/// Generates the replies of a conversation.
pub(super) struct Replies<'m> {
    engine: Engine<'m>,
    tokenizer: &'m Tokenizer,
    output: Output,
    /// The request of the next reply, without its prompt. Its id is the number of replies so far.
    request: Request,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    prompt_ids: &'a [u32],
    ids: &'a [u32],
    text: String,
    finish_reason: String,
    /// Prompt tokens whose keys and values were in the cache.
    cached_tokens: u64,
}

impl<'m> Replies<'m> {
    pub(super) fn new(
        tokenizer: &'m Tokenizer,
        engine: Engine<'m>,
        mut request: Request,
        output: Output,
    ) -> Replies<'m> {
        // A turn also ends with the tokenizer's end-of-text ids, even if the model lists only others.
        let eos = &mut request.stop.eos;
        let more: Vec<u32> = tokenizer.eos_ids().iter().filter(|id| !eos.contains(id)).copied().collect();
        eos.extend(more);
        Replies { engine, tokenizer, output, request }
    }

    /// Generates and prints the reply to `prompt`, until it ends or a signal stops it.
    pub(super) fn reply(&mut self, prompt: Vec<u32>, signals: &ChatSignals) -> Result<Completion, CliError> {
        let hits_before = self.engine.counters().prefix_cache_hits;
        let index = self.engine.submit(Request { prompt: prompt.clone(), ..self.request.clone() })?;
        self.request.id += 1;
        let (mut stream, streams) = (self.tokenizer.stream_continuation(), self.output == Output::Stream);
        while !self.engine.is_idle() {
            if signals.stop_requested() {
                self.engine.stop(index);
                break;
            }
            for event in self.engine.step()?.events.iter().filter(|event| event.is_text()) {
                let piece = stream.push(event.token);
                if streams {
                    out::print(printable(&piece))?;
                }
            }
        }
        let done = self.engine.take_finished().pop().expect("one request yields one completion");
        if streams {
            out::print(printable(&stream.finish()) + "\n")?;
        }
        let cached_tokens = self.engine.counters().prefix_cache_hits - hits_before;
        self.print_end(&done, &prompt, cached_tokens)?;
        Ok(done)
    }

    /// Prints the whole reply, or after a streamed one the reason why it ended.
    fn print_end(&self, done: &Completion, prompt_ids: &[u32], cached_tokens: u64) -> Result<(), CliError> {
        let text = done.text(self.tokenizer);
        match (self.output, done.finish_reason) {
            (Output::Json, reason) => {
                let (ids, finish_reason) = (&done.tokens[..], reason.to_string());
                return out::print_json(&Line { prompt_ids, ids, text, finish_reason, cached_tokens });
            }
            (Output::Line, _) => return out::print(one_line(&text) + "\n"),
            (Output::Stream, FinishReason::Eos) => {}
            (Output::Stream, FinishReason::Stop) => eprintln!("[stopped]"),
            (Output::Stream, FinishReason::Length) => {
                eprintln!("[reached --max-new {}]", self.request.max_new);
            }
            (Output::Stream, FinishReason::Context) => eprintln!("[the model's context is full]"),
        }
        Ok(())
    }
}

/// Replaces line breaks by spaces.
fn one_line(text: &str) -> String {
    text.replace("\r\n", " ").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_break_of_a_reply_becomes_a_space() {
        assert_eq!(one_line("a\nb\r\nc\rd"), "a b c d");
    }
}
