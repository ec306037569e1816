//! Generates, streams and prints the replies.
use serde::Serialize;

use super::signals::ChatSignals;
use crate::cli::exit::CliError;
use crate::cli::out;
use crate::decode::{Completion, Engine, FinishReason, Request, SampleOptions, StopConditions};
use crate::model::tokenizer::Tokenizer;
use crate::report::printable;

/// How replies are generated and printed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplyOptions {
    /// Maximum number of new tokens.
    pub(super) max_new: usize,
    pub(super) seed: u64,
    pub(super) sampling: SampleOptions,
    /// Print JSON.
    pub(super) json: bool,
    /// Whether the output is a terminal.
    pub(super) terminal: bool,
}

/// Generates the replies of a conversation.
pub(super) struct Replies<'m> {
    engine: Engine<'m>,
    tokenizer: &'m Tokenizer,
    options: ReplyOptions,
    eos: Vec<u32>,
    /// Number of replies so far.
    count: u64,
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
        eos: &[u32],
        engine: Engine<'m>,
        options: ReplyOptions,
    ) -> Replies<'m> {
        // A turn also ends with the tokenizer's end-of-text ids, even if the model lists only others.
        let more = tokenizer.eos_ids().iter().filter(|id| !eos.contains(id));
        let eos = eos.iter().chain(more).copied().collect();
        Replies { engine, tokenizer, options, eos, count: 0 }
    }

    /// Generates and prints the reply to `prompt`, until it ends or a signal stops it.
    pub(super) fn reply(&mut self, prompt: Vec<u32>, signals: &ChatSignals) -> Result<Completion, CliError> {
        let hits_before = self.engine.counters().prefix_cache_hits;
        let request = Request {
            id: self.count,
            seed: self.options.seed,
            prompt: prompt.clone(),
            options: self.options.sampling,
            max_new: self.options.max_new,
            stop: StopConditions { eos: self.eos.clone(), tokens: Vec::new() },
        };
        self.count += 1;
        let index = self.engine.submit(request)?;
        let (mut stream, streams) = (self.tokenizer.stream(), self.streams());
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

    /// Whether replies are printed token by token.
    fn streams(&self) -> bool {
        self.options.terminal && !self.options.json
    }

    /// Prints the whole reply, or after a streamed one the reason why it ended.
    fn print_end(&self, done: &Completion, prompt_ids: &[u32], cached_tokens: u64) -> Result<(), CliError> {
        let text = done.text(self.tokenizer);
        if self.options.json {
            let (ids, finish_reason) = (&done.tokens[..], done.finish_reason.to_string());
            return out::print_json(&Line { prompt_ids, ids, text, finish_reason, cached_tokens });
        }
        if !self.options.terminal {
            return out::print(one_line(&text) + "\n");
        }
        match done.finish_reason {
            FinishReason::Eos => {}
            FinishReason::Stop => eprintln!("[stopped]"),
            FinishReason::Length => eprintln!("[reached --max-new {}]", self.options.max_new),
            FinishReason::Context => eprintln!("[the model's context is full]"),
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
