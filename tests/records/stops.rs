//! Stop texts: the text that is certain after each token, the sequences that end, and their completions.
use xtrain::decode::{Completion, Event, FinishReason, StopConditions, TextStops};
use xtrain::model::tokenizer::Tokenizer;

use crate::{Record, row};

const STOPS: [&[&str]; 7] =
    [&[], &["ab"], &["aab", "b"], &["abac", "c"], &["\n\n"], &["\u{e9}", ""], &["\u{fffd}"]];

const TEXTS: [&[u8]; 8] =
    [b"", b"aaab", b"xabay", b"ababac", b"one\n\ntwo\n", "caf\u{e9}!".as_bytes(), b"a\xc3", b"\xff\xe2\x82b"];

pub(crate) fn record() -> Record {
    let (mut out, tokenizer) = (Record::default(), Tokenizer::byte());
    for stops in STOPS {
        out.section(format!("{stops:?}: pieces | text, tokens, reason"));
        for text in TEXTS {
            for ended in [false, true] {
                let end = if ended { " and an end of text" } else { "" };
                let title = format!("{:?}{end}", String::from_utf8_lossy(text));
                out.line(row(title, 42, of(&tokenizer, stops, text, ended)));
            }
        }
    }
    out.section("reasons of tokens 1 to 5: end-of-text tokens 1 and 2, stop tokens 2 and 4");
    let stop = StopConditions { eos: vec![1, 2], tokens: vec![2, 4] };
    out.line(format!("{:?}", [1, 2, 3, 4, 5].map(|token| stop.reason(token))));
    out
}

fn of(tokenizer: &Tokenizer, stops: &[&str], text: &[u8], ended: bool) -> String {
    let mut open = TextStops::new(tokenizer, stops.iter().map(ToString::to_string).collect());
    let mut tokens: Vec<u32> = text.iter().copied().map(u32::from).collect();
    tokens.extend(ended.then_some(256));
    let reason = if ended { FinishReason::Eos } else { FinishReason::Length };
    let (mut pieces, mut reached) = (Vec::new(), Vec::new());
    for (at, &token) in tokens.iter().enumerate() {
        let finish = (at + 1 == tokens.len()).then_some(reason);
        let event =
            Event { index: 3, id: 0, position: at + 1, token, logprob: 0.0, processed_logprob: 0.0, finish };
        pieces.push(open.push(&event));
        reached.extend(open.reached());
    }
    let zeros = vec![0.0; tokens.len()];
    let mut completion = Completion {
        index: 3,
        id: 0,
        prompt_len: 1,
        tokens,
        logprobs: zeros.clone(),
        processed_logprobs: zeros,
        top_logprobs: Vec::new(),
        finish_reason: reason,
    };
    let text = open.finish(&mut completion);
    assert_eq!(completion.tokens.len(), completion.logprobs.len());
    let found = if reached.is_empty() { "" } else { " stops" };
    format!("{pieces:?}{found} | {text:?} {} {}", completion.tokens.len(), completion.finish_reason)
}
