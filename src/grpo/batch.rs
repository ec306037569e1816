//! A generation batch: groups of completions with their prompts.
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::scores::Scores;
use crate::decode::{Completion, FinishReason, TextStops};
use crate::model::rl::Advantages;
use crate::model::tokenizer::Tokenizer;
use crate::rollout_file::turns;
use crate::tensor::faults::{self, Fault};

/// A prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// The other fields of its line, which are passed to the reward.
    pub columns: Map<String, Value>,
}

/// One completion of a group: turns of sampled tokens, with the tokens that rewards appended between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The address of its random numbers.
    pub id: u64,
    /// The tokens as the model read and sampled them.
    pub tokens: Vec<u32>,
    /// Whether each token was sampled. The others were appended: they are read, but have no loss.
    pub mask: Vec<bool>,
    /// The log-probability of each token after temperature and filters: the policy's. 0 for an appended token.
    pub logprobs: Vec<f32>,
    /// Its text, without the end-of-text token or the stop text that ends the last turn.
    pub text: String,
    /// Why the last turn ended.
    pub finish: FinishReason,
    /// Text that was to be appended did not fit.
    pub cut: bool,
    /// The text of the last turn from its stop text on. Empty: it has none.
    after_text: String,
    /// Digest of the tokens and the mask, within this process.
    digest: u64,
}

impl Sample {
    /// The sample of the first turn. `stops`: the texts that end a turn.
    pub fn new(turn: Completion, stops: &[String], tokenizer: &Tokenizer) -> Sample {
        let mut sample = Sample {
            id: turn.id,
            tokens: Vec::new(),
            mask: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            finish: turn.finish_reason,
            cut: false,
            after_text: String::new(),
            digest: 0,
        };
        sample.push_turn(turn, stops, tokenizer);
        sample
    }

    /// Adds the sampled tokens of a turn, up to the one that completes a stop text.
    pub fn push_turn(&mut self, mut turn: Completion, stops: &[String], tokenizer: &Tokenizer) {
        self.after_text = String::new();
        if !stops.is_empty() {
            // also for turns of other processes, which are sent as tokens
            let text = TextStops::new(tokenizer, stops.to_vec()).finish(&mut turn);
            let whole = tokenizer.decode_continuation(turn.text_tokens());
            if !faults::on(Fault::StopTextInReward) {
                self.after_text = whole.strip_prefix(&*text).unwrap_or_default().to_string();
            }
        }
        self.tokens.extend(&turn.tokens);
        self.mask.resize(self.tokens.len(), true);
        self.logprobs.extend(&turn.processed_logprobs);
        self.finish = turn.finish_reason;
        self.text = self.text_from(0, tokenizer);
        self.digest = digest(&self.tokens, &self.mask);
    }

    /// Appends tokens that are not sampled.
    pub fn append(&mut self, tokens: &[u32]) {
        self.tokens.extend(tokens);
        self.mask.resize(self.tokens.len(), false);
        self.logprobs.resize(self.tokens.len(), 0.0);
        self.digest = digest(&self.tokens, &self.mask);
    }

    /// The sampled tokens of each turn, as ranges of `tokens`.
    pub fn turns(&self) -> Vec<Range<usize>> {
        turns(&self.mask)
    }

    /// The sampled text of the last turn, without the end-of-text token or the stop text that ends it.
    pub fn turn_text(&self, tokenizer: &Tokenizer) -> String {
        let start = self.turns().last().map_or(0, |turn| turn.start);
        self.text_from(start, tokenizer)
    }

    /// The text of the tokens from `start` on, up to the end of the text of the last turn.
    fn text_from(&self, start: usize, tokenizer: &Tokenizer) -> String {
        let ended = usize::from(self.finish == FinishReason::Eos);
        let mut text = tokenizer.decode_continuation(&self.tokens[start..self.tokens.len() - ended]);
        if text.ends_with(&self.after_text) {
            text.truncate(text.len() - self.after_text.len());
        }
        text
    }

    /// Number of sampled tokens.
    pub fn sampled(&self) -> usize {
        self.mask.iter().filter(|&&sampled| sampled).count()
    }

    /// One value per token from one value per sampled token; 0 for appended tokens.
    pub fn per_token(&self, sampled: &[f64]) -> Vec<f64> {
        let mut sampled = sampled.iter();
        self.mask
            .iter()
            .map(|&is_sampled| if is_sampled { sampled.next().copied().unwrap_or(0.0) } else { 0.0 })
            .collect()
    }

    /// Whether tokens and mask are still those of the rollout.
    pub fn is_unchanged(&self) -> bool {
        digest(&self.tokens, &self.mask) == self.digest
    }

    /// Whether the completion was cut by a length limit.
    pub fn truncated(&self) -> bool {
        self.cut || matches!(self.finish, FinishReason::Length | FinishReason::Context)
    }
}

fn digest(tokens: &[u32], mask: &[bool]) -> u64 {
    let mut hash = DefaultHasher::new();
    (tokens, mask).hash(&mut hash);
    hash.finish()
}

/// The completions of one prompt.
#[derive(Debug, Clone)]
pub struct Group {
    /// The index of the prompt in its file, or its number in the sequence of a task.
    pub prompt_id: u64,
    /// The prompt.
    pub prompt: Arc<Prompt>,
    /// Its completions.
    pub samples: Vec<Sample>,
}

/// All completions of a batch, group by group.
pub fn samples(groups: &[Group]) -> impl Iterator<Item = (&Group, &Sample)> {
    groups.iter().flat_map(|group| group.samples.iter().map(move |sample| (group, sample)))
}

/// Number of sampled tokens of all completions. `mask_truncated`: truncated completions are not counted.
pub(super) fn sampled_tokens(groups: &[Group], mask_truncated: bool) -> usize {
    let counted = samples(groups).filter(|(_, sample)| !(mask_truncated && sample.truncated()));
    let all = faults::on(Fault::AppendedTokensInDivisor);
    counted.map(|(_, sample)| if all { sample.tokens.len() } else { sample.sampled() }).sum()
}

/// A generation batch with rewards and advantages.
#[derive(Debug)]
pub struct Batch {
    /// The optimizer step that uses it first, from 1.
    pub step: u64,
    /// The groups of the update.
    pub groups: Vec<Group>,
    /// Groups that were replaced because their rewards were all equal.
    pub discarded: Vec<Group>,
    /// The rewards of the discarded groups.
    pub discarded_scores: Scores,
    /// The rewards of the groups of the update.
    pub scores: Scores,
    /// The advantages.
    pub advantages: Advantages,
    /// The digest of the weights that sampled.
    pub policy: String,
}

impl Batch {
    /// Tokens of prompts and completions, sampled and appended, without the discarded groups.
    pub fn tokens(&self) -> usize {
        samples(&self.groups).map(|(group, sample)| group.prompt.ids.len() + sample.tokens.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(tokens: &[u32], finish_reason: FinishReason) -> Completion {
        let logprobs = vec![-1.0; tokens.len()];
        let processed_logprobs = logprobs.clone();
        let tokens = tokens.to_vec();
        Completion {
            index: 0,
            id: 0,
            prompt_len: 1,
            tokens,
            logprobs,
            processed_logprobs,
            top_logprobs: Vec::new(),
            finish_reason,
        }
    }

    /// The numbers of tokens, without and with a mask for truncated completions, of one with three sampled and three
    /// appended tokens, and of a truncated one with five tokens.
    fn counts() -> [usize; 2] {
        let tokenizer = Tokenizer::byte();
        let mut continued = Sample::new(turn(&[65, 66], FinishReason::Stop), &[], &tokenizer);
        continued.append(&[67, 68, 69]);
        continued.push_turn(turn(&[70], FinishReason::Stop), &[], &tokenizer);
        let truncated = Sample::new(turn(&[65; 5], FinishReason::Length), &[], &tokenizer);
        let prompt = Arc::new(Prompt { text: "p".into(), ids: vec![80], columns: Map::new() });
        let groups = [continued, truncated].map(|one| Group {
            prompt_id: 0,
            prompt: prompt.clone(),
            samples: vec![one],
        });
        [false, true].map(|masked| sampled_tokens(&groups, masked))
    }

    #[test]
    fn a_turn_ends_with_its_stop_text_and_its_text_before_it() {
        let (tokenizer, stops) = (Tokenizer::byte(), ["</a>".to_string(), "\n".to_string()]);
        let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
        let mut sample = Sample::new(turn(&ids("x</a>yz"), FinishReason::Length), &stops, &tokenizer);
        assert_eq!((&*sample.text, &*sample.turn_text(&tokenizer)), ("x", "x"));
        assert_eq!((sample.tokens.clone(), sample.finish), (ids("x</a>"), FinishReason::Stop));
        assert!(!sample.truncated());
        sample.append(&ids("7"));
        sample.push_turn(turn(&ids("ok\n"), FinishReason::Stop), &stops, &tokenizer);
        assert_eq!((&*sample.text, &*sample.turn_text(&tokenizer)), ("x</a>7ok", "ok"));
        assert_eq!((sample.tokens.len(), sample.logprobs.len(), sample.mask.len()), (9, 9, 9));
        sample.append(&ids("8"));
        sample.push_turn(turn(&[97, 0xc3], FinishReason::Length), &stops, &tokenizer);
        assert_eq!(sample.text, "x</a>7ok\n8a\u{fffd}", "a turn without a stop text");
    }

    #[test]
    fn appended_tokens_and_masked_completions_are_not_counted() {
        assert_eq!(counts(), [3 + 5, 3]);
    }

    #[test]
    #[cfg(feature = "faults")]
    fn appended_tokens_that_are_counted_are_found() {
        assert_eq!(faults::with(Fault::AppendedTokensInDivisor, counts), [6 + 5, 6]);
    }
}
