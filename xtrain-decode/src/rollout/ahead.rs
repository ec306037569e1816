//! Steps ahead of the host: on a GPU tokens, log-probabilities and what is wrong with a row stay on the device for
//! some steps, each of which begins with the tokens of the one before; then the host looks at all of them.
//!
//! The host still says which rows run, where and with which random numbers, since none of that depends on tokens: it
//! says so for all steps at once, before the first, and sends nothing between them. What does depend on tokens is
//! decided when it looks, in the order of the steps: a sequence that ended inside has computed on, and what came
//! after its end is dropped. So tokens, their bits and the order of ends are those of an engine with one look a step.
use std::collections::BTreeMap;

use xtrain_model::{Eager, Result as ModelResult};
use xtrain_tensor::ops::{DeviceSampler, SampleFailure, SampleRow, Sampled};
use xtrain_tensor::{
    Device,
    faults::{self, Fault},
};

use super::LogitsRows;
use super::engine::Engine;
use super::plan::Plan;
use crate::cache::Snapshot;
use crate::error::{Error, Result};
use crate::sampler::Choice;

/// What a row drew in a turn, or why it could not.
type Outcome = std::result::Result<Sampled, SampleFailure>;

impl Engine<'_> {
    /// Steps that need no look at a token between them; none where the host has to see each: rows of prompts, prompts
    /// that are waited for, a processor, a cache that begins anew every step.
    pub(super) fn steps_ahead(&self, plan: &Plan) -> Option<usize> {
        let on_gpu = matches!(self.model.device(), Device::Gpu(_));
        let possible = on_gpu && self.options.steps_per_sync > 1 && !self.force_sync && self.cache.is_some();
        let alone = |run: &super::plan::Run| {
            let s = &self.live[run.live];
            run.draws && run.rows.len() == 1 && !(s.is_fresh() && self.groups.contains_key(&s.group))
        };
        let every = plan.runs.len() == self.live.len() && plan.runs.iter().all(alone);
        if !possible || !every || self.options.logits_rows != LogitsRows::Sampled {
            return None;
        }
        let left = plan.runs.iter().map(|run| self.live[run.live].left(self.model.config())).min()?;
        Some(left.clamp(1, self.options.turns(self.model.config())))
    }

    /// So many steps, or as many as the cache has room for, then a look.
    pub(super) fn run_ahead(&mut self, plan: &mut Plan, steps: usize) -> Result<()> {
        let drawn = match self.draw_ahead(plan, steps) {
            Ok(drawn) => drawn,
            Err(error) => {
                // nothing has happened to those whose tokens nobody saw; of two errors the first says why
                let _ = self.rewind(plan);
                return Err(error);
            }
        };
        plan.runs.iter().for_each(|run| self.ran(run));
        self.counters.passes += drawn.len() as u64;
        let ends = self.accept(plan, &drawn);
        if !self.force_sync || !self.events.is_empty() {
            self.counters.prefill_rows += plan.prefill_rows as u64;
        }
        for run in &plan.runs {
            let sequence = &mut self.live[run.live];
            sequence.done = sequence.tokens.len() - 1;
        }
        self.rewind(plan)?;
        let before = self.finished.len();
        self.retire();
        self.finished[before..].sort_by_key(|c| ends.get(&c.index).copied());
        Ok(())
    }

    /// What the rows draw in each of the steps.
    fn draw_ahead(&mut self, plan: &mut Plan, steps: usize) -> Result<Vec<Vec<Outcome>>> {
        let rows = plan.runs.len();
        let mut draws = match self.draws.take().filter(|draws| draws.capacity() >= rows) {
            Some(draws) => draws,
            None => {
                let turns = self.options.turns(self.model.config());
                DeviceSampler::new(self.model.device(), rows.next_power_of_two(), turns)
                    .map_err(xtrain_model::Error::from)?
            }
        };
        let steps = self.steps_with_room(plan, steps);
        let drawn = self.foretell(plan, steps, &mut draws).and_then(|()| {
            for step in 0..steps {
                if step > 0 {
                    plan.rows.pos.iter_mut().for_each(|pos| *pos += 1);
                }
                self.draw_step(plan, &mut draws, step)?;
            }
            Ok(draws.read_back()?)
        })?;
        self.draws = Some(draws);
        Ok(drawn)
    }

    /// Of so many steps those that the cache has room for, which is theirs from now on; after them the host looks, and
    /// somebody gives up theirs.
    fn steps_with_room(&mut self, plan: &Plan, steps: usize) -> usize {
        let cache = self.cache.as_mut().expect("steps ahead have a cache");
        let mut room = |step: usize| {
            let mut places = plan.rows.seq.iter().zip(&plan.rows.pos);
            places.all(|(&lane, &pos)| cache.reserve(lane, pos as usize + step + 1).is_ok())
        };
        (1..steps).find(|&step| !room(step)).unwrap_or(steps)
    }

    /// Sends the device what it has to know of all these steps: positions, slots, angles. Nothing is sent between them.
    fn foretell(&self, plan: &Plan, steps: usize, draws: &mut DeviceSampler) -> ModelResult<()> {
        let cache = self.cache.as_ref().expect("steps ahead have a cache");
        let lists = |step: usize| {
            let pos: Vec<u32> = plan.rows.pos.iter().map(|&pos| pos + step as u32).collect();
            let places = plan.rows.seq.iter().zip(&pos);
            let slots: Option<Vec<u32>> =
                places.map(|(&lane, &pos)| cache.slot(lane, pos as usize)).collect();
            [Some(pos), slots].into_iter().flatten().collect()
        };
        self.model.prefetch_rope(
            plan.rows.pos.iter().flat_map(|&pos| (0..steps).map(move |step| pos as usize + step)),
        )?;
        Ok(draws.stage(&plan.rows.id, (0..steps).map(lists).collect())?)
    }

    fn draw_step(&mut self, plan: &Plan, draws: &mut DeviceSampler, step: usize) -> ModelResult<()> {
        let cache = self.cache.as_mut().expect("steps ahead have a cache");
        let h = self.model.embed_sampled(draws)?;
        let hidden = self.model.forward_hidden(&mut Eager, cache, &plan.rows, h)?;
        let first = self.live[0].id;
        let row = |run: &super::plan::Run| self.live[run.live].sample_row(first, step as u32);
        let rows: Vec<SampleRow<'_>> = plan.runs.iter().map(row).collect();
        Ok(draws.sample(&self.model.logits(&hidden)?, &rows)?)
    }

    /// Takes the tokens in the order of the steps, each sequence up to its end; in which step each end came. From a
    /// step on in which a row could not draw, all is done again: the host looks at that step itself and says why.
    fn accept(&mut self, plan: &Plan, drawn: &[Vec<Outcome>]) -> BTreeMap<usize, usize> {
        let mut ends = BTreeMap::new();
        for (step, outcomes) in drawn.iter().enumerate() {
            let pairs = || plan.runs.iter().zip(outcomes);
            if pairs().any(|(run, outcome)| self.live[run.live].end.is_none() && outcome.is_err()) {
                self.force_sync = true;
                self.counters.surplus_rows += ((drawn.len() - step) * plan.runs.len()) as u64;
                break;
            }
            for (run, outcome) in pairs() {
                let sequence = &mut self.live[run.live];
                let over = sequence.end.is_some() && !faults::on(Fault::SurplusTokenKept);
                let (Ok(s), false) = (outcome, over) else {
                    self.counters.surplus_rows += 1;
                    continue;
                };
                let choice = Choice { token: s.token, logprob: s.log_prob, processed_logprob: s.processed };
                let event = sequence.accept(choice, self.model.config());
                if event.finish.is_some() {
                    ends.insert(sequence.index, step);
                }
                self.events.push(event);
                self.counters.layer_rows += 1;
                self.counters.head_rows += 1;
            }
        }
        ends
    }

    /// The cache holds of each sequence of the plan what it has done, and no more.
    fn rewind(&mut self, plan: &Plan) -> Result<()> {
        let cache = self.cache.as_mut().expect("steps ahead have a cache");
        for run in &plan.runs {
            let sequence = &self.live[run.live];
            if cache.seq_len(sequence.lane) > sequence.done {
                cache.rewind(Snapshot { seq: sequence.lane, len: sequence.done }).map_err(Error::from)?;
            }
        }
        Ok(())
    }
}
