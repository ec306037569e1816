//! The scheduler: the running and waiting sequences, their slots, and the KV cache.
//!
//! Its decisions depend only on tokens and on cache room; it never uses the model. One step:
//!
//! ```text
//! admit -> draft -> plan -> (the runner executes the plan) -> mark_computed -> accept -> settle_drafts -> retire
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `admission` | gives slots to waiting sequences, and prompts that are in the cache already |
//! | `planning` | selects the rows of a step; preempts sequences if the cache is too small |
//! | `acceptance` | takes the results of a step: computed rows and sampled tokens |
//! | `retirement` | removes sequences that have ended and frees their slots |
//! | `continuation`, `held` | finished sequences that can be continued |
//! | `drafting` | drafted tokens of a step, and what becomes of their rows |
//! | `queue` | the waiting sequences and their order |
//! | `groups` | prompts that several completions share |
//! | `offloading`, `offload_policy` | rows of preempted sequences that leave the cache and return |
//! | `snapshots`, `token_snapshots` | rows that outlive their sequence |
//! | `watermark`, `growth` | room for the growth of the running sequences |
//! | `sharing` | rows that completions with equal tokens share |
use std::sync::Arc;

use xtrain_model::{Config, Model};
use xtrain_tensor::Device;
use xtrain_tensor::faults::{self, Fault};

use super::completion::{Completion, Counters, Event};
use super::options::{Continuation, EngineOptions, Speculation};
use super::plan::{ForkedSample, SamplerId};
use super::request::Request;
use super::sequence::Sequence;
use super::speculation::row_cost;
use crate::cache::{Cache, KvMemory};
use crate::error::Result;
use groups::PromptGroups;
use growth::FinishedLengths;
use held::HeldSequences;
use offload_policy::Offloading;
use queue::WaitingQueue;
pub use token_snapshots::SnapshotId;
use token_snapshots::Snapshots;

mod acceptance;
mod admission;
mod continuation;
mod drafting;
mod groups;
mod growth;
mod held;
mod offload_policy;
mod offloading;
mod planning;
mod queue;
mod retirement;
mod sharing;
mod snapshots;
mod token_snapshots;
mod watermark;

#[cfg(test)]
mod tests;

/// Sequences, slots, prompts and the cache.
#[derive(Debug)]
pub(super) struct Scheduler {
    /// The config with the positions that a sequence may have.
    pub(super) cfg: Config,
    /// The cost of a drafted row.
    row_cost: f32,
    /// The cost of a drafted token before its row runs, in the same units. `None`: no token is drafted.
    pub(super) draft_cost: Option<f32>,
    pub(super) options: EngineOptions,
    /// `None`: every step recomputes its sequences.
    pub(super) cache: Option<Box<dyn Cache>>,
    /// Sequences without a slot.
    pub(super) waiting: WaitingQueue,
    /// Sequences with a slot, the oldest first. Plans and outcomes name them by their index.
    pub(super) running: Vec<Sequence>,
    /// The last one is handed out first.
    free_slots: Vec<SeqSlot>,
    groups: PromptGroups,
    /// Sequences of a group share the rows of equal tokens.
    shares_rows: bool,
    /// The cache is too small for more sequences: none is admitted until one ends.
    admission_blocked: bool,
    /// The next step synchronizes after one forward pass, so that the host can determine why a row has no token.
    force_sync: bool,
    /// Steps so far.
    steps: usize,
    /// Sequences submitted so far.
    submitted: usize,
    /// Sequences that forked their prompt and whose first token is due.
    pub(super) forked: Vec<ForkedSample>,
    pub(super) counters: Counters,
    /// The new tokens of the step.
    pub(super) events: Vec<Event>,
    /// Completions that the caller has not taken yet.
    pub(super) finished: Vec<Completion>,
    finished_lengths: FinishedLengths,
    held: HeldSequences,
    snapshots: Snapshots,
    pub(super) offloading: Offloading,
}

/// A place in the batch and in the cache.
#[derive(Debug, Clone, Copy)]
struct SeqSlot {
    /// Number of the sequence in the cache.
    number: u32,
    /// The group whose prompt the cache still holds under this number, if no sequence has the slot.
    prompt_of: Option<usize>,
}

impl Scheduler {
    pub(super) fn new(model: &Model, options: EngineOptions, memory: KvMemory) -> Result<Scheduler> {
        let room = options.room(model.config());
        let slots = (0..room.sequences as u32).rev();
        Ok(Scheduler {
            cfg: options.kv.limits(model.config()),
            row_cost: row_cost(model),
            draft_cost: (options.speculation != Speculation::Off).then_some(0.0),
            options,
            cache: options.kv.cache(model, room, memory)?,
            waiting: WaitingQueue::default(),
            running: Vec::new(),
            free_slots: slots.map(|number| SeqSlot { number, prompt_of: None }).collect(),
            groups: PromptGroups::default(),
            // a GPU runs several steps ahead instead, and a continuation needs rows of its own
            shares_rows: !matches!(model.device(), Device::Gpu(_))
                && options.continuation == Continuation::Off,
            admission_blocked: false,
            force_sync: false,
            steps: 0,
            submitted: 0,
            forked: Vec::new(),
            counters: Counters::default(),
            events: Vec::new(),
            finished: Vec::new(),
            finished_lengths: FinishedLengths::default(),
            held: HeldSequences::default(),
            snapshots: Snapshots::default(),
            offloading: Offloading::new(model, options.kv),
        })
    }

    /// Adds `g` completions of a checked request to the waiting sequences. Returns the index of the first. With a
    /// cache, the prompt runs once for all of them.
    pub(super) fn submit(&mut self, request: Request, g: usize, sampler: SamplerId, priority: i32) -> usize {
        let (first, request) = (self.submitted, Arc::new(request));
        for n in 0..g {
            let mut sequence = Sequence::new(request.clone(), first, n, sampler);
            sequence.rank = WaitingQueue::rank(&self.options, self.steps, priority);
            self.waiting.insert(sequence);
        }
        if g > 1 && self.cache.is_some() && !faults::on(Fault::GroupPromptNotShared) {
            self.groups.insert(first, g);
        }
        self.submitted += g;
        first
    }
}
