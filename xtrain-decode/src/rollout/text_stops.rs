//! Stop texts: sequences that end when their text contains one of several texts.
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use xtrain_model::tokenizer::{StreamDecoder, Tokenizer};
use xtrain_tensor::faults::{self, Fault};

use super::completion::{Completion, Event, FinishReason};
use super::stop_matcher::StopMatcher;

/// The text of sequences while they are generated, and the texts that end them.
///
/// A sequence ends with the token that completes a stop text. Its text ends before the stop text. The first match is
/// the one that ends first, and of several that end at one place the longest, so the result does not depend on how the
/// text is split into tokens. The caller passes every event of an [`Engine`](crate::Engine) to
/// [`TextStops::push`], stops the sequences of [`TextStops::reached`] after each step, and passes each completion to
/// [`TextStops::finish`]. [`Engine::stop_at`](crate::Engine::stop_at) does the first two for callers that do not stream.
///
/// ```
/// # use xtrain_decode::{Completion, Engine, EngineOptions, Request, TextStops};
/// # use xtrain_model::{Config, Model, tokenizer::Tokenizer};
/// # use xtrain_tensor::{Device, Dtype};
/// # let cfg = Config {
/// #     vocab: 257, dim: 16, ffn_dim: 32, n_layers: 1, n_heads: 2, n_kv_heads: 1, head_dim: 8,
/// #     max_positions: 128, rope_theta: 1e4, norm_eps: 1e-6, ..Config::default()
/// # };
/// # let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 0)?;
/// let tokenizer = Tokenizer::byte();
/// let mut stops = TextStops::new(&tokenizer, vec!["\n".to_string()]);
/// let mut engine = Engine::new(&model, EngineOptions::default())?;
/// engine.submit(Request::sampled(&[65, 66], 8, 1.0, 7))?;
/// while !engine.is_idle() {
///     for event in engine.step()?.events {
///         print!("{}", stops.push(event));
///     }
///     for index in stops.reached() {
///         engine.stop(index);
///     }
///     for mut completion in engine.take_finished() {
///         let text = stops.finish(&mut completion);
///         assert!(!text.contains('\n') && completion.tokens.len() <= 8);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// On a GPU that runs several steps between two synchronizations, the tokens after the end are dropped.
#[derive(Debug, Clone)]
pub struct TextStops<'t> {
    tokenizer: &'t Tokenizer,
    /// The stop texts of sequences without their own.
    stops: Arc<[String]>,
    /// Those of other sequences that have no token yet, by index.
    own: BTreeMap<usize, Arc<[String]>>,
    /// The sequences without a completion, by index.
    open: BTreeMap<usize, OpenText<'t>>,
    /// The sequences that reached a stop text since the last call of [`TextStops::reached`].
    reached: Vec<usize>,
}

/// The text of one sequence so far.
#[derive(Debug, Clone)]
struct OpenText<'t> {
    decoder: StreamDecoder<'t>,
    matcher: StopMatcher,
    stops: Arc<[String]>,
    /// The certain text.
    text: String,
    /// The tokens up to the one that completes a stop text.
    tokens: Vec<u32>,
}

impl<'t> TextStops<'t> {
    /// Texts that end a sequence; empty ones are ignored. Without stop texts, only decodes.
    pub fn new(tokenizer: &'t Tokenizer, stops: Vec<String>) -> TextStops<'t> {
        let (own, open) = (BTreeMap::new(), BTreeMap::new());
        TextStops { tokenizer, stops: without_empty(stops), own, open, reached: Vec::new() }
    }

    /// Sets the texts that end the sequences `indices` of the engine, instead of those of [`TextStops::new`]; empty ones are
    /// ignored. To be called before the first events of these sequences.
    pub fn set_stops(&mut self, indices: Range<usize>, stops: Vec<String>) {
        if !faults::on(Fault::StopTextsOfAllSequences) {
            let stops = without_empty(stops);
            self.own.extend(indices.map(|index| (index, stops.clone())));
        }
    }

    /// The texts that end a sequence, when it is opened.
    fn take_stops(&mut self, index: usize) -> Arc<[String]> {
        self.own.remove(&index).unwrap_or_else(|| self.stops.clone())
    }

    /// Takes a new token. Returns the text that is certain now, in whole characters: an end of the text that can be the
    /// beginning of a stop text is held back.
    pub fn push(&mut self, event: &Event) -> String {
        if !self.open.contains_key(&event.index) {
            let stops = self.take_stops(event.index);
            self.open.insert(event.index, OpenText::new(self.tokenizer, stops));
        }
        let open = self.open.get_mut(&event.index).expect("opened above");
        if open.matcher.found() || !event.is_text() {
            return String::new();
        }
        let certain = open.push(event.token);
        if open.matcher.found() {
            self.reached.push(event.index);
        }
        certain
    }

    /// The indices of the sequences that reached a stop text since the last call, for
    /// [`Engine::stop`](crate::Engine::stop).
    pub fn reached(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.reached)
    }

    /// Ends the text of a completion and returns it. If it reached a stop text, the completion keeps the tokens up to
    /// the one that completes the stop text, and its finish reason is [`FinishReason::Stop`]. Otherwise the text is
    /// that of [`Completion::text`]. Tokens whose events the caller has not got, because their step failed, count too.
    pub fn finish(&mut self, completion: &mut Completion) -> String {
        let mut open = match self.open.remove(&completion.index) {
            Some(open) => open,
            None => OpenText::new(self.tokenizer, self.take_stops(completion.index)),
        };
        let tokens = completion.text_tokens();
        if !tokens.starts_with(&open.tokens) && !faults::on(Fault::LostEventsIgnored) {
            open = OpenText::new(self.tokenizer, open.stops);
        }
        for &token in tokens.get(open.tokens.len()..).unwrap_or_default() {
            if open.matcher.found() {
                break;
            }
            open.push(token);
        }
        // Bytes of an incomplete character become U+FFFD, which may be part of a stop text.
        let rest = open.decoder.finish();
        let rest = open.matcher.push(&rest, &open.stops);
        open.text.push_str(&rest);
        if open.matcher.found() {
            if !faults::on(Fault::SurplusAfterStopTextKept) {
                completion.truncate(open.tokens.len());
            }
            completion.finish_reason = FinishReason::Stop;
        } else {
            open.text.push_str(&open.matcher.finish());
        }
        open.text
    }
}

/// The texts that are not empty.
fn without_empty(mut stops: Vec<String>) -> Arc<[String]> {
    stops.retain(|stop| !stop.is_empty());
    stops.into()
}

impl OpenText<'_> {
    /// Appends a token of the text. Returns the text that is certain now.
    fn push(&mut self, token: u32) -> String {
        self.tokens.push(token);
        let piece = self.decoder.push(token);
        let certain = self.matcher.push(&piece, &self.stops);
        self.text.push_str(&certain);
        certain
    }

    fn new(tokenizer: &Tokenizer, stops: Arc<[String]>) -> OpenText<'_> {
        let decoder = tokenizer.stream_continuation();
        OpenText { decoder, matcher: StopMatcher::new(), stops, text: String::new(), tokens: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(index: usize, token: u32, finish: Option<FinishReason>) -> Event {
        Event { index, id: 0, position: 1, token, logprob: 0.0, processed_logprob: 0.0, finish }
    }

    /// The text of a completion of which only the tokens `pushed` were pushed, its tokens and its finish reason.
    fn finished(text: &str, pushed: impl IntoIterator<Item = usize>) -> (String, Vec<u32>, FinishReason) {
        let tokenizer = Tokenizer::byte();
        let mut stops = TextStops::new(&tokenizer, vec!["bc".to_string()]);
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        for at in pushed {
            stops.push(&event(3, tokens[at], None));
        }
        let mut completion = Completion {
            index: 3,
            id: 0,
            prompt_len: 1,
            logprobs: vec![0.0; tokens.len()],
            processed_logprobs: vec![0.0; tokens.len()],
            tokens,
            top_logprobs: Vec::new(),
            finish_reason: FinishReason::Length,
        };
        let text = stops.finish(&mut completion);
        (text, completion.tokens, completion.finish_reason)
    }

    #[test]
    fn tokens_of_a_failed_step_belong_to_the_text() {
        for pushed in 0..=4 {
            assert_eq!(finished("axyz", 0..pushed).0, "axyz");
            let (text, tokens, finish) = finished("abcd", 0..pushed);
            assert_eq!(
                (text.as_str(), tokens.len(), finish),
                ("a", 3, FinishReason::Stop),
                "{pushed} pushed"
            );
        }
    }

    /// A token in the middle of which the caller has not got the event.
    fn text_without_an_event() -> String {
        finished("axyz", [0, 2, 3]).0
    }

    #[test]
    fn a_lost_event_in_the_middle_does_not_change_the_text() {
        assert_eq!(text_without_an_event(), "axyz");
        assert_eq!(finished("abcd", [0, 2]).1.len(), 3);
        assert_eq!(finished("abxc", [0, 1, 3]).1.len(), 4, "the text has no stop text");
    }

    #[test]
    #[cfg(feature = "faults")]
    fn a_text_of_other_tokens_than_those_of_the_completion_is_found() {
        assert_eq!(faults::with(Fault::LostEventsIgnored, text_without_an_event), "ayzz");
    }

    #[test]
    fn a_sequence_that_reached_a_stop_text_is_named_once() {
        let tokenizer = Tokenizer::byte();
        let mut stops = TextStops::new(&tokenizer, vec!["bc".to_string(), String::new()]);
        let pushed = [(4, b'a'), (7, b'b'), (4, b'b'), (4, b'c'), (4, b'd'), (7, b'd')]
            .map(|(index, byte)| stops.push(&event(index, u32::from(byte), None)));
        assert_eq!(pushed, ["a", "", "", "", "", "bd"]);
        assert_eq!((stops.reached(), stops.reached()), (vec![4], vec![]));
        assert_eq!(
            stops.push(&event(7, 256, Some(FinishReason::Eos))),
            "",
            "an end-of-text token is not text"
        );
    }
}
