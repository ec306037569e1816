//! The engine: every step is one forward over rows of prompts and of new tokens alike.
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use xtrain_model::Model;
use xtrain_tensor::ops::DeviceSampler;

use super::pass::Watch;
use super::plan::Plan;
use super::sequence::{End, Sequence};
use super::{Completion, Counters, EngineOptions, Event, FinishReason, LogitRow, Request, Step};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::sampler::Sampler;

/// Completes requests, as many at a time as it has room for.
///
/// A step runs the rows that are due: the next token of each sequence and, where one has just begun, its
/// prompt or a part of it. Sequences that end leave at once and waiting ones take their place. What a
/// sequence becomes does not depend on the others, on the cache, or on any option here.
#[derive(Debug)]
pub struct Engine<'m> {
    pub(super) model: &'m Model,
    pub(super) options: EngineOptions,
    pub(super) cache: Option<Box<dyn Cache>>,
    /// Positions that a sequence may have.
    positions: usize,
    /// Requests that have no lane, in their order.
    pub(super) queue: VecDeque<Sequence>,
    /// Sequences that have one, the oldest first.
    pub(super) live: Vec<Sequence>,
    pub(super) free: Vec<SeqSlot>,
    /// Prompts of several sequences that are not all under way.
    pub(super) groups: BTreeMap<usize, Group>,
    /// Whether the cache was too small: nothing new begins until a sequence ends.
    pub(super) admission_blocked: bool,
    pub(super) counters: Counters,
    pub(super) samplers: Vec<Sampler>,
    /// Where a GPU keeps what it drew until the host looks.
    pub(super) draws: Option<DeviceSampler>,
    /// Whether the host has to see the next step, to say why a row has no token.
    pub(super) force_sync: bool,
    submitted: usize,
    plan: Plan,
    pub(super) events: Vec<Event>,
    pub(super) finished: Vec<Completion>,
}

/// A place in the cache that no sequence has.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeqSlot {
    pub(super) number: u32,
    /// The group whose prompt is still there.
    pub(super) holds: Option<usize>,
}

/// Several completions of one prompt.
#[derive(Debug)]
pub(super) struct Group {
    /// Sequences without a token.
    pub(super) fresh: usize,
    /// The logits after the prompt, once they are known.
    pub(super) logits: Option<Arc<[f32]>>,
}

impl<'m> Engine<'m> {
    /// An engine without a request. Nothing is computed.
    ///
    /// # Errors
    /// [`Error::Option`] for an option outside its range.
    pub fn new(model: &'m Model, options: EngineOptions) -> Result<Engine<'m>> {
        options.check(model.config())?;
        let room = options.room(model.config());
        let lanes = (0..room.sequences as u32).rev();
        Ok(Engine {
            model,
            options,
            cache: options.cache(model)?,
            positions: room.positions,
            queue: VecDeque::new(),
            live: Vec::new(),
            free: lanes.map(|number| SeqSlot { number, holds: None }).collect(),
            groups: BTreeMap::new(),
            admission_blocked: false,
            counters: Counters::default(),
            samplers: Vec::new(),
            draws: None,
            force_sync: false,
            submitted: 0,
            plan: Plan::default(),
            events: Vec::new(),
            finished: Vec::new(),
        })
    }

    /// Puts `request` at the end of the queue; returns its place in the order of submission.
    ///
    /// # Errors
    /// Those of [`Request::check`]; [`Error::TooLong`] when it may need more positions than there are.
    pub fn submit(&mut self, request: Request) -> Result<usize> {
        self.submit_group(request, 1)
    }

    /// Puts `g` completions of one prompt at the end of the queue: `request` under its id and the
    /// `g - 1` ids after it. The prompt is computed once and its room shared; a completion that waits for a
    /// place takes no room, neither in the cache nor for its tokens. Returns the place of the
    /// first in the order of submission.
    ///
    /// # Errors
    /// As [`Engine::submit`]; [`Error::Option`] for `g` = 0 or ids beyond 2^64.
    pub fn submit_group(&mut self, request: Request, g: usize) -> Result<usize> {
        let cfg = self.model.config();
        request.check(cfg)?;
        let (id, got) = (request.id, request.required_len(cfg));
        if got > self.positions {
            return Err(Error::TooLong { id, want: self.positions, got });
        }
        if g == 0 || id.checked_add(g as u64 - 1).is_none() {
            let want = "at least 1 completion, with ids below 2^64";
            return Err(Error::Option { field: "completions", want, got: format!("{g} from id {id}") });
        }
        let first = self.submitted;
        let sampler = self.sampler_for(&request)?;
        let request = Arc::new(request);
        self.queue.extend((0..g).map(|n| Sequence::new(request.clone(), first, n, sampler)));
        if g > 1 && self.cache.is_some() {
            self.groups.insert(first, Group { fresh: g, logits: None });
        }
        self.submitted += g;
        Ok(first)
    }

    fn sampler_for(&mut self, request: &Request) -> Result<usize> {
        if let Some(at) = self.samplers.iter().position(|s| *s.options() == request.options) {
            return Ok(at);
        }
        let (id, position) = (request.id, request.prompt.len());
        let sampler =
            Sampler::new(request.options).map_err(|source| Error::Sample { id, position, source })?;
        self.samplers.push(sampler);
        Ok(self.samplers.len() - 1)
    }

    /// Whether nothing is left to do.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.live.is_empty()
    }

    /// Sequences under way.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Sequences that wait for a place.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// What has been done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The cache; none for [`KvKind::Off`](crate::KvKind::Off).
    pub fn cache(&self) -> Option<&dyn Cache> {
        self.cache.as_deref()
    }

    /// The completions that have ended since the last call, in the order of their ends.
    pub fn take_finished(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.finished)
    }

    /// Runs until nothing is left to do; the completions in the order of submission.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn run(&mut self) -> Result<Vec<Completion>> {
        while !self.is_idle() {
            self.step()?;
        }
        let mut all = self.take_finished();
        all.sort_by_key(|c| c.index);
        Ok(all)
    }

    /// One forward over the rows that are due, and a token for each sequence whose last row ran. On a GPU, where
    /// nothing but new tokens is due, up to [`EngineOptions::look`] forwards and as many tokens of each.
    ///
    /// # Errors
    /// [`Error::Sample`] for a row of logits that gives no token: its sequence has left, the others
    /// have gone on. [`Error::Model`] when the model refuses, or when the cache has no room for one
    /// sequence alone: nothing has changed then.
    pub fn step(&mut self) -> Result<Step<'_>> {
        self.advance(None)
    }

    /// [`Engine::step`]; `watch` sees every row of logits that the head computes.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn step_watched(&mut self, watch: &mut dyn FnMut(LogitRow<'_>)) -> Result<Step<'_>> {
        self.advance(Some(watch))
    }

    fn advance(&mut self, watch: Watch<'_>) -> Result<Step<'_>> {
        self.events.clear();
        let before = self.counters;
        let begun = self.admit();
        self.retire();
        begun?;
        let mut plan = std::mem::take(&mut self.plan);
        let ran = self.fill(&mut plan).and_then(|()| match self.steps_ahead(&plan) {
            Some(steps) if watch.is_none() => self.run_ahead(&mut plan, steps),
            _ => self.run_rows(&plan, watch),
        });
        self.plan = plan;
        self.retire();
        ran?;
        let prefill_rows = (self.counters.prefill_rows - before.prefill_rows) as usize;
        Ok(Step {
            events: &self.events,
            passes: (self.counters.passes - before.passes) as usize,
            prefill_rows,
            decode_rows: (self.counters.layer_rows - before.layer_rows) as usize - prefill_rows,
            head_rows: (self.counters.head_rows - before.head_rows) as usize,
        })
    }

    /// Ends the sequence of that place in the order of submission, as stopped with the tokens it has;
    /// whether there was one under way or waiting.
    pub fn stop(&mut self, index: usize) -> bool {
        let mut all = self.live.iter_mut().chain(&mut self.queue);
        let Some(sequence) = all.find(|s| s.index == index) else { return false };
        sequence.end = Some(End::Finished(FinishReason::Stop));
        if let Some(at) = self.queue.iter().position(|s| s.index == index) {
            let sequence = self.queue.remove(at).expect("it was found there");
            self.count_out(&sequence);
            self.finished.push(sequence.into_completion(FinishReason::Stop));
        }
        self.retire();
        true
    }

    /// Sequences that have ended leave; their room is free.
    pub(super) fn retire(&mut self) {
        let mut at = 0;
        while at < self.live.len() {
            let Some(end) = self.live[at].end else {
                at += 1;
                continue;
            };
            let sequence = self.live.remove(at);
            self.admission_blocked = false;
            self.leave_lane(&sequence);
            self.count_out(&sequence);
            if let End::Finished(reason) = end {
                self.finished.push(sequence.into_completion(reason));
            }
        }
    }

    /// A sequence that leaves without a token is no longer waited for by its group.
    fn count_out(&mut self, sequence: &Sequence) {
        if !sequence.is_fresh() || sequence.end == Some(End::Refused) {
            return;
        }
        if let Some(group) = self.groups.get_mut(&sequence.group) {
            group.fresh -= 1;
            if group.fresh == 0 {
                self.groups.remove(&sequence.group);
            }
        }
    }
}
