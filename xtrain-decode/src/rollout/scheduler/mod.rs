//! The scheduler: the running and waiting sequences, their slots, and the KV cache.
//!
//! Its decisions depend only on tokens and on cache room; it never uses the model. One step:
//!
//! ```text
//! admit -> plan -> (the runner executes the plan) -> mark_computed -> accept -> retire
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `admission` | gives slots to waiting sequences, and prompts that are in the cache already |
//! | `planning` | selects the rows of a step; preempts sequences if the cache is too small |
//! | `acceptance` | takes the results of a step: computed rows and sampled tokens |
//! | `retirement` | removes sequences that have ended and frees their slots |
//! | `continuation`, `held` | finished sequences that can be continued |
//! | `groups` | prompts that several completions share |
//! | `sharing` | rows that completions with equal tokens share |
use std::collections::VecDeque;
use std::sync::Arc;

use xtrain_model::{Config, Model};
use xtrain_tensor::Device;
use xtrain_tensor::faults::{self, Fault};

use super::completion::{Completion, Counters, Event};
use super::options::{Continuation, EngineOptions};
use super::plan::{ForkedSample, SamplerId};
use super::request::Request;
use super::sequence::Sequence;
use crate::cache::{Cache, KvMemory};
use crate::error::Result;
use groups::PromptGroups;
use held::HeldSequences;

mod acceptance;
mod admission;
mod continuation;
mod groups;
mod held;
mod planning;
mod retirement;
mod sharing;

#[cfg(test)]
mod tests;

/// Sequences, slots, prompts and the cache.
#[derive(Debug)]
pub(super) struct Scheduler<'m> {
    cfg: &'m Config,
    options: EngineOptions,
    /// `None`: every step recomputes its sequences.
    pub(super) cache: Option<Box<dyn Cache>>,
    /// Sequences without a slot, in the order in which they run.
    pub(super) waiting: VecDeque<Sequence>,
    /// Sequences with a slot, the oldest first. Plans and outcomes name them by their index.
    pub(super) running: Vec<Sequence>,
    /// The last one is handed out first.
    free_slots: Vec<SeqSlot>,
    groups: PromptGroups,
    /// Sequences of a group share the rows of equal tokens.
    shares_rows: bool,
    /// The cache was too small for the running sequences: none is admitted until one ends.
    admission_blocked: bool,
    /// The next step synchronizes after one forward pass, so that the host can determine why a row has no token.
    force_sync: bool,
    /// Sequences submitted so far.
    submitted: usize,
    /// Sequences that forked their prompt and whose first token is due.
    pub(super) forked: Vec<ForkedSample>,
    pub(super) counters: Counters,
    /// The new tokens of the step.
    pub(super) events: Vec<Event>,
    /// Completions that the caller has not taken yet.
    pub(super) finished: Vec<Completion>,
    held: HeldSequences,
}

/// A place in the batch and in the cache.
#[derive(Debug, Clone, Copy)]
struct SeqSlot {
    /// Number of the sequence in the cache.
    number: u32,
    /// The group whose prompt the cache still holds under this number, if no sequence has the slot.
    prompt_of: Option<usize>,
}

impl<'m> Scheduler<'m> {
    pub(super) fn new(model: &'m Model, options: EngineOptions, memory: KvMemory) -> Result<Scheduler<'m>> {
        let room = options.room(model.config());
        let slots = (0..room.sequences as u32).rev();
        Ok(Scheduler {
            cfg: model.config(),
            options,
            cache: options.kv.cache(model, room, memory)?,
            waiting: VecDeque::new(),
            running: Vec::new(),
            free_slots: slots.map(|number| SeqSlot { number, prompt_of: None }).collect(),
            groups: PromptGroups::default(),
            // a GPU runs several steps ahead instead, and a continuation needs rows of its own
            shares_rows: !matches!(model.device(), Device::Gpu(_))
                && options.continuation == Continuation::Off,
            admission_blocked: false,
            force_sync: false,
            submitted: 0,
            forked: Vec::new(),
            counters: Counters::default(),
            events: Vec::new(),
            finished: Vec::new(),
            held: HeldSequences::default(),
        })
    }

    /// Adds `g` completions of a checked request to the waiting sequences. Returns the index of the first. With a
    /// cache, the prompt runs once for all of them.
    pub(super) fn submit(&mut self, request: Request, g: usize, sampler: SamplerId) -> usize {
        let (first, request) = (self.submitted, Arc::new(request));
        self.waiting.extend((0..g).map(|n| Sequence::new(request.clone(), first, n, sampler)));
        if g > 1 && self.cache.is_some() && !faults::on(Fault::GroupPromptNotShared) {
            self.groups.insert(first, g);
        }
        self.submitted += g;
        first
    }
}
