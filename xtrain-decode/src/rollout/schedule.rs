//! Who has a place: sequences begin, take a prompt from another, and give their room up.
use xtrain_model::Error as ModelError;

use super::PrefixCaching;
use super::engine::{Engine, SeqSlot};
use super::sequence::Sequence;
use crate::cache::Snapshot;
use crate::error::Result;

/// Where a sequence finds the prompt that another computes.
enum Prompt {
    /// Nowhere.
    Own,
    /// In this lane, whole, and its logits are known.
    In(u32),
    /// In a lane, soon.
    Coming,
}

impl Engine<'_> {
    /// Waiting sequences take the free lanes, in their order.
    pub(super) fn admit(&mut self) -> Result<()> {
        let mut result = Ok(());
        while !(self.free.is_empty() || self.admission_blocked && !self.live.is_empty()) {
            let Some(sequence) = self.queue.pop_front() else { break };
            result = result.and(self.begin(sequence));
        }
        for at in 0..self.free.len() {
            if self.free[at].holds.take().is_some() {
                self.free_cache(self.free[at].number);
            }
        }
        result
    }

    /// Gives `sequence` a lane, and its prompt if another has it.
    fn begin(&mut self, mut sequence: Sequence) -> Result<()> {
        let lane = self.lane_for(&sequence);
        sequence.take_lane(lane.number, self.model.config());
        let prompt = self.prompt_of(&sequence, lane);
        let at = self.live.len();
        sequence.waits = matches!(prompt, Prompt::Coming);
        self.live.push(sequence);
        if !matches!(prompt, Prompt::In(_)) && lane.holds.is_some() {
            self.free_cache(lane.number);
        }
        match prompt {
            Prompt::In(from) => self.take_prompt(at, from),
            Prompt::Own => {
                self.match_prefix(at);
                Ok(())
            }
            Prompt::Coming => Ok(()),
        }
    }

    /// The sequence at `at`, which has just begun, takes the rows that earlier ones left, all but its last:
    /// that one gives the logits.
    fn match_prefix(&mut self, at: usize) {
        let sequence = &mut self.live[at];
        if let (Some(cache), PrefixCaching::On) = (&mut self.cache, self.options.prefix_caching) {
            sequence.done = cache.match_prefix(sequence.lane, &sequence.tokens[..sequence.tokens.len() - 1]);
            self.counters.prefix_cache_hits += sequence.done as u64;
        }
    }

    /// Keeps the rows of a sequence for those to come.
    pub(super) fn insert_prefix(&mut self, sequence: &Sequence) {
        if let (Some(cache), PrefixCaching::On) = (&mut self.cache, self.options.prefix_caching) {
            cache.insert_prefix(sequence.lane, &sequence.tokens[..sequence.done]);
        }
    }

    /// A free lane, one that holds its prompt before any other.
    fn lane_for(&mut self, sequence: &Sequence) -> SeqSlot {
        let holds = |lane: &SeqSlot| sequence.is_fresh() && lane.holds == Some(sequence.group);
        let at = self.free.iter().position(holds).unwrap_or(self.free.len() - 1);
        self.free.remove(at)
    }

    fn prompt_of(&self, sequence: &Sequence, lane: SeqSlot) -> Prompt {
        let known = self.groups.get(&sequence.group).filter(|_| sequence.is_fresh());
        let Some(group) = known else { return Prompt::Own };
        if group.logits.is_some() && lane.holds == Some(sequence.group) {
            return Prompt::In(lane.number);
        }
        let mut others = self.live.iter().filter(|s| s.group == sequence.group);
        match (group.logits.is_some(), others.clone().find(|s| s.holds_prompt())) {
            (true, Some(holder)) => Prompt::In(holder.lane),
            _ if others.any(|s| s.is_fresh() && !s.waits) => Prompt::Coming,
            _ => Prompt::Own,
        }
    }

    /// The sequence at `at` takes its prompt from lane `from` and draws its first token. Without the
    /// room for a copy it computes the prompt itself.
    fn take_prompt(&mut self, at: usize, from: u32) -> Result<()> {
        let (lane, len) = (self.live[at].lane, self.live[at].prompt_len());
        let cache = self.cache.as_mut().expect("without a cache there are no groups");
        let taken = if lane == from {
            cache.rewind(Snapshot { seq: lane, len })
        } else {
            cache.fork(from, lane, len)
        };
        self.live[at].waits = false;
        match taken {
            Ok(()) => (),
            Err(ModelError::CacheFull { .. }) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        self.live[at].done = len;
        self.counters.forks += 1;
        let known = self.groups.get(&self.live[at].group).and_then(|g| g.logits.clone());
        self.draw(at, &known.expect("a prompt that is taken has its logits"))
    }

    /// Sequences whose prompt has just been computed take it; those whose prompt nobody computes any
    /// more do it themselves.
    pub(super) fn begin_waiting(&mut self) -> Result<()> {
        let mut result = Ok(());
        for at in 0..self.live.len() {
            if !self.live[at].waits || self.live[at].end.is_some() {
                continue;
            }
            let none = SeqSlot { number: self.live[at].lane, holds: None };
            match self.prompt_of(&self.live[at], none) {
                Prompt::In(from) => result = result.and(self.take_prompt(at, from)),
                Prompt::Own => self.live[at].waits = false,
                Prompt::Coming => (),
            }
        }
        result
    }

    /// The youngest sequence gives up its room and waits, to be recomputed.
    pub(super) fn preempt(&mut self) {
        let mut sequence = self.live.pop().expect("only one of several sequences is preempted");
        self.insert_prefix(&sequence);
        self.free_cache(sequence.lane);
        self.free.push(SeqSlot { number: sequence.lane, holds: None });
        (sequence.done, sequence.waits) = (0, false);
        self.queue.push_front(sequence);
        self.admission_blocked = true;
        self.counters.preemptions += 1;
    }

    /// The lane of a sequence that has left. It keeps the prompt until the next sequences begin, if the
    /// first of them wants it.
    pub(super) fn leave_lane(&mut self, sequence: &Sequence) {
        let next = self.queue.front().filter(|s| s.group == sequence.group && s.is_fresh());
        let holds = next.filter(|_| sequence.holds_prompt()).map(|s| s.group);
        self.insert_prefix(sequence);
        if holds.is_none() {
            self.free_cache(sequence.lane);
        }
        self.free.push(SeqSlot { number: sequence.lane, holds });
    }

    fn free_cache(&mut self, lane: u32) {
        if let Some(cache) = &mut self.cache {
            cache.free(lane);
        }
    }
}
