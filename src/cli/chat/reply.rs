//! The model's turn: drawn token by token, shown as it comes.
use serde::Serialize;

use super::stops::Stops;
use super::{ChatArgs, CliError};
use crate::cli::loaded::Loaded;
use crate::cli::out;
use crate::decode::{Completion, Engine, FinishReason, Request, StopConditions};
use crate::model::tokenizer::Tokenizer;
use crate::report::printable;

/// Who answers.
pub(super) struct Replies<'m> {
    engine: Engine<'m>,
    tokenizer: &'m Tokenizer,
    args: &'m ChatArgs,
    eos: Vec<u32>,
    terminal: bool,
    /// Replies so far.
    n: u64,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Line<'a> {
    prompt_ids: &'a [u32],
    ids: &'a [u32],
    text: String,
    finish_reason: String,
    recalled: u64,
}

impl<'m> Replies<'m> {
    pub(super) fn new(
        args: &'m ChatArgs,
        loaded: &'m Loaded,
        engine: Engine<'m>,
        terminal: bool,
    ) -> Replies<'m> {
        let tokenizer = loaded.tokenizer.as_ref().expect("a conversation begins with a tokenizer");
        // a turn ends with the tokenizer's end of text, also where the model names others alone
        let more = tokenizer.eos_ids().iter().filter(|id| !loaded.eos.contains(id));
        let eos = loaded.eos.iter().chain(more).copied().collect();
        Replies { engine, tokenizer, args, eos, terminal, n: 0 }
    }

    /// DeviceSampler the reply to `prompt` and shows it, until it ends or a signal stops it.
    ///
    /// # Errors
    /// The engine's; standard output's.
    pub(super) fn reply(&mut self, prompt: Vec<u32>, stops: &Stops) -> Result<Completion, CliError> {
        let before = self.engine.counters().prefix_cache_hits;
        let request = Request {
            id: self.n,
            seed: self.args.seed,
            prompt: prompt.clone(),
            options: self.args.sampling.options(),
            max_new: self.args.max_new,
            stop: StopConditions { eos: self.eos.clone(), tokens: Vec::new() },
        };
        self.n += 1;
        let index = self.engine.submit(request)?;
        let (mut stream, streams) = (self.tokenizer.stream(), self.streams());
        while !self.engine.is_idle() {
            if stops.asked() {
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
        let done = self.engine.take_finished().pop().expect("one request is one completion");
        if streams {
            out::print(printable(&stream.finish()) + "\n")?;
        }
        let recalled = self.engine.counters().prefix_cache_hits - before;
        self.tell(&done, (&prompt, recalled))?;
        Ok(done)
    }

    fn streams(&self) -> bool {
        self.terminal && !self.args.json
    }

    fn tell(&self, done: &Completion, (prompt_ids, recalled): (&[u32], u64)) -> Result<(), CliError> {
        let text = done.text(self.tokenizer);
        if self.args.json {
            let (ids, finish_reason) = (&done.tokens[..], done.finish_reason.to_string());
            return out::print_json(&Line { prompt_ids, ids, text, finish_reason, recalled });
        }
        if !self.terminal {
            return out::print(one_line(&text) + "\n");
        }
        match done.finish_reason {
            FinishReason::Eos => {}
            FinishReason::Stop => eprintln!("[stopped]"),
            FinishReason::Length => eprintln!("[ended by --max-new {}]", self.args.max_new),
            FinishReason::Context => eprintln!("[ended where the model's positions are full]"),
        }
        Ok(())
    }
}

/// A reply as one line.
fn one_line(text: &str) -> String {
    text.replace("\r\n", " ").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_one_line_whatever_breaks_it() {
        assert_eq!(one_line("a\nb\r\nc\rd"), "a b c d");
    }
}
