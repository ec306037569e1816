//! The definition of constrained output, by brute force: an automaton of another crate reads the bytes of every token of
//! the vocabulary, before every token of the completion.
use std::collections::HashMap;

use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::{Anchored, Input, MatchKind};
use xtrain::decode::sampler::{Address, Sampler};
use xtrain::decode::{Completion, FinishReason, Request};
use xtrain::model::Model;
use xtrain::model::tokenizer::Tokenizer;
use xtrain::tensor::softmax::lse_row;

/// An automaton that matches whole texts.
pub(super) struct Automaton {
    dfa: DFA,
    cache: Cache,
    start: LazyStateID,
    /// Results of [`Automaton::continues`].
    continued: HashMap<LazyStateID, bool>,
}

impl Automaton {
    pub(super) fn new(regex: &str) -> Automaton {
        let config = DFA::config().match_kind(MatchKind::All).skip_cache_capacity_check(true);
        let dfa = DFA::builder().configure(config).build(regex).unwrap_or_else(|e| panic!("{regex:?}: {e}"));
        let mut cache = dfa.create_cache();
        let start = dfa.start_state_forward(&mut cache, &Input::new("").anchored(Anchored::Yes)).unwrap();
        Automaton { dfa, cache, start, continued: HashMap::new() }
    }

    /// The state after `bytes`. `None`: they begin no match.
    fn after(&mut self, from: LazyStateID, bytes: &[u8]) -> Option<LazyStateID> {
        let mut state = from;
        for &byte in bytes {
            state = self.dfa.next_state(&mut self.cache, state, byte).unwrap();
            if state.is_dead() {
                return None;
            }
        }
        // the automaton tells a match one byte late: the byte may be one that continues nothing
        let continued = !state.is_match() || self.continues(state) || self.accepts(state);
        continued.then_some(state)
    }

    /// Whether a byte may follow.
    fn continues(&mut self, state: LazyStateID) -> bool {
        let Automaton { dfa, cache, continued, .. } = self;
        // a cache that was cleared has other names for its states
        assert_eq!(cache.clear_count(), 0);
        let may_follow = |byte| !dfa.next_state(cache, state, byte).unwrap().is_dead();
        *continued.entry(state).or_insert_with(|| (0..=255).any(may_follow))
    }

    fn accepts(&mut self, state: LazyStateID) -> bool {
        self.dfa.next_eoi_state(&mut self.cache, state).unwrap().is_match()
    }

    /// Whether each text token may follow `text`, and whether the text may end there.
    pub(super) fn allowed(&mut self, tokenizer: &Tokenizer, text: &[u8], eos: &[u32]) -> (Vec<bool>, bool) {
        let state = self.after(self.start, text).expect("the tokens so far begin a match");
        let mut is_allowed = |id: usize| {
            let bytes = tokenizer.text_token(id as u32).filter(|_| !eos.contains(&(id as u32)));
            bytes.is_some_and(|bytes| self.after(state, bytes).is_some())
        };
        let allowed = (0..tokenizer.vocab_size()).map(&mut is_allowed).collect();
        (allowed, self.accepts(state))
    }
}

/// The completion of a request whose new tokens match `regex`. `None`: any text. The whole sequence is recomputed for
/// every token; the sampler gets logits of -inf for tokens that are not allowed.
pub(super) fn complete(
    model: &Model,
    tokenizer: &Tokenizer,
    request: &Request,
    automaton: Option<&mut Automaton>,
) -> Completion {
    let Request { id, seed, prompt, options, max_new, stop, .. } = request;
    let (mut all, mut logprobs, mut processed_logprobs) = (prompt.clone(), Vec::new(), Vec::new());
    let mut sampler = Sampler::new(*options).unwrap();
    let mut automaton = automaton;
    let finish_reason = loop {
        let hidden = crate::decode::logits(model, &all);
        let logits = &hidden[hidden.len() - model.config().vocab..];
        let mut masked = logits.to_vec();
        let new = |all: &[u32]| -> Vec<u8> {
            all[prompt.len()..].iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect()
        };
        if let Some(automaton) = &mut automaton {
            let (allowed, may_end) = automaton.allowed(tokenizer, &new(&all), &stop.eos);
            for (id, logit) in masked.iter_mut().enumerate() {
                let ends = may_end && stop.eos.contains(&(id as u32));
                if !(ends || allowed.get(id).is_some_and(|&allowed| allowed)) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let address = Address { seed: *seed, id: *id, position: all.len() as u32 };
        let choice = sampler.pick(&masked, &all, address).unwrap();
        all.push(choice.token);
        logprobs.push(logits[choice.token as usize] - lse_row(logits));
        processed_logprobs.push(choice.processed_logprob);
        if stop.eos.contains(&choice.token) {
            break FinishReason::Eos;
        }
        if stop.tokens.contains(&choice.token) {
            break FinishReason::Stop;
        }
        if let Some(automaton) = &mut automaton {
            let (allowed, may_end) = automaton.allowed(tokenizer, &new(&all), &stop.eos);
            if may_end && !allowed.contains(&true) {
                break FinishReason::Stop;
            }
        }
        if logprobs.len() == *max_new {
            break FinishReason::Length;
        }
        if all.len() == model.config().max_positions {
            break FinishReason::Context;
        }
    };
    let tokens = all.split_off(prompt.len());
    Completion {
        index: 0,
        id: *id,
        prompt_len: all.len(),
        tokens,
        logprobs,
        processed_logprobs,
        top_logprobs: Vec::new(),
        finish_reason,
    }
}
