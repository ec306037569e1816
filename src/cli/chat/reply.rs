//! Generates, streams and prints the replies.
use serde::Serialize;

use super::signals::ChatSignals;
use crate::cli::{CliError, out};
use crate::decode::{Completion, Engine, FinishReason, Request, TextStops};
use crate::model::tokenizer::Tokenizer;
use crate::report::printable;
use crate::tensor::faults::{self, Fault};

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

/// A reply.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) completion: Completion,
    /// Its text, before a stop text.
    pub(super) text: String,
    pub(super) end: ReplyEnd,
    /// Prompt tokens whose keys and values were in the cache.
    pub(super) cached_tokens: u64,
}

/// How a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyEnd {
    /// By its last token or a length limit.
    Finished,
    /// Its text reached a stop text.
    StopText,
    /// A signal stopped it.
    Interrupted,
}

/// Generates the replies of a conversation.
pub(super) struct Replies<'m> {
    engine: Engine<'m>,
    stops: TextStops<'m>,
    output: Output,
    /// The request of the next reply, without its prompt. Its id is the number of replies so far.
    request: Request,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    completion: &'a str,
    prompt_ids: &'a [u32],
    completion_ids: &'a [u32],
    logprobs: &'a [f32],
    finish_reason: FinishReason,
    /// Prompt tokens whose keys and values were in the cache.
    cached_tokens: u64,
}

impl<'m> Replies<'m> {
    pub(super) fn new(
        tokenizer: &'m Tokenizer,
        engine: Engine<'m>,
        mut request: Request,
        stops: Vec<String>,
        output: Output,
    ) -> Replies<'m> {
        // A turn also ends with the tokenizer's end-of-text ids, even if the model lists only others.
        let eos = &mut request.stop.eos;
        let more: Vec<u32> = tokenizer.eos_ids().iter().filter(|id| !eos.contains(id)).copied().collect();
        if !faults::on(Fault::TokenizerEndTokensIgnored) {
            eos.extend(more);
        }
        Replies { engine, stops: TextStops::new(tokenizer, stops), output, request }
    }

    /// The engine, which has no running sequence between replies.
    pub(super) fn engine(&mut self) -> &mut Engine<'m> {
        &mut self.engine
    }

    /// Generates and prints the reply to `prompt`, until it ends or a signal stops it.
    pub(super) fn reply(&mut self, prompt: Vec<u32>, signals: &ChatSignals) -> Result<Reply, CliError> {
        let hits_before = self.engine.counters().prefix_cache_hits;
        let index = self.engine.submit(Request { prompt: prompt.clone(), ..self.request.clone() })?;
        self.request.id += 1;
        let (mut end, mut streamed, streams) = (ReplyEnd::Finished, 0, self.output == Output::Stream);
        while !self.engine.is_idle() {
            if signals.stop_requested() {
                self.engine.stop(index);
                end = ReplyEnd::Interrupted;
                break;
            }
            for event in self.engine.step()?.events {
                let piece = self.stops.push(event);
                if streams {
                    streamed += piece.len();
                    out::print(printable(&piece))?;
                }
            }
            for reached in self.stops.reached() {
                self.engine.stop(reached);
                end = ReplyEnd::StopText;
            }
        }
        let mut completion = self.engine.take_finished().pop().expect("one request yields one completion");
        let text = self.stops.finish(&mut completion);
        if streams {
            out::print(printable(&text[streamed..]) + "\n")?;
        }
        let cached_tokens = self.engine.counters().prefix_cache_hits - hits_before;
        let reply = Reply { completion, text, end, cached_tokens };
        self.print_end(&reply, &prompt)?;
        Ok(reply)
    }

    /// Prints the whole reply, or after a streamed one the reason why it ended.
    fn print_end(&self, reply: &Reply, prompt_ids: &[u32]) -> Result<(), CliError> {
        let Reply { completion: done, text, end, cached_tokens } = reply;
        match (self.output, done.finish_reason) {
            (Output::Json, reason) => {
                return out::print_json(&Line {
                    completion: text,
                    prompt_ids,
                    completion_ids: &done.tokens,
                    logprobs: &done.logprobs,
                    finish_reason: reason,
                    cached_tokens: *cached_tokens,
                });
            }
            (Output::Line, _) => return out::print(one_line(text) + "\n"),
            (Output::Stream, FinishReason::Stop) if *end == ReplyEnd::Interrupted => eprintln!("[stopped]"),
            (Output::Stream, FinishReason::Eos | FinishReason::Stop) => {}
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
    use crate::decode::{EngineOptions, StopConditions};
    use crate::model::{Config, Model};
    use crate::tensor::{Device, Dtype};

    /// The ids that end a reply of models that list none, another one, and that of the tokenizer with another one.
    fn end_tokens() -> [Vec<u32>; 3] {
        let sizes = Config { vocab: 257, dim: 4, ffn_dim: 4, n_heads: 1, n_kv_heads: 1, ..Config::default() };
        let rest = Config { head_dim: 4, rope_theta: 1e4, norm_eps: 1e-6, n_layers: 1, ..sizes };
        let cfg = Config { max_positions: 16, ..rest };
        let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 1).unwrap();
        let tokenizer = Tokenizer::byte();
        [vec![], vec![7], vec![256, 7]].map(|eos| {
            let engine = Engine::new(&model, EngineOptions::default()).unwrap();
            let stop = StopConditions { eos, tokens: Vec::new() };
            let request = Request { stop, ..Request::greedy(&[1], 4) };
            let replies = Replies::new(&tokenizer, engine, request, Vec::new(), Output::Json);
            replies.request.stop.eos
        })
    }

    #[test]
    fn a_turn_ends_with_the_ids_of_the_model_and_those_of_the_tokenizer() {
        assert_eq!(end_tokens(), [vec![256], vec![7, 256], vec![256, 7]]);
    }

    #[test]
    #[cfg(feature = "faults")]
    fn end_tokens_of_the_tokenizer_that_are_ignored_are_found() {
        let found = faults::with(Fault::TokenizerEndTokensIgnored, end_tokens);
        assert_eq!(found, [vec![], vec![7], vec![256, 7]]);
    }

    #[test]
    fn every_line_break_of_a_reply_becomes_a_space() {
        assert_eq!(one_line("a\nb\r\nc\rd"), "a b c d");
    }
}
