//! A pass: rows through the model, logits, a token for each sequence whose last row ran.
use xtrain_model::{Eager, NoCache};
use xtrain_tensor::ops::{self, SampleRow, Sampled};
use xtrain_tensor::{Device, Tensor};

use super::engine::Engine;
use super::plan::{Plan, Run};
use super::{LogitRow, LogitsRows, PrefixCaching};
use crate::error::Result;
use crate::sampler::Choice;

/// Who sees the rows of logits, if anyone does.
pub(super) type Watch<'w> = Option<&'w mut dyn FnMut(LogitRow<'_>)>;

impl Engine<'_> {
    pub(super) fn run_rows(&mut self, plan: &Plan, watch: Watch<'_>) -> Result<()> {
        if plan.rows.is_empty() {
            return Ok(());
        }
        self.force_sync = false;
        let rows = &plan.rows;
        let hidden = match &mut self.cache {
            Some(cache) => self.model.forward(&mut Eager, cache, rows)?,
            None => self.model.forward(&mut Eager, &mut NoCache::new(rows)?, rows)?,
        };
        self.counters.passes += 1;
        self.counters.layer_rows += rows.len() as u64;
        self.counters.prefill_rows += plan.prefill_rows as u64;
        if self.cache.is_some() {
            plan.runs.iter().for_each(|run| self.ran(run));
        }
        match self.options.logits_rows {
            LogitsRows::Sampled => self.draw_from(plan, &self.logits(&hidden, &plan.drawn)?, watch),
            LogitsRows::All => {
                let all: Vec<usize> = (0..rows.len()).collect();
                self.draw_from(plan, &self.logits(&hidden, &all)?, watch)
            }
        }
    }

    /// The rows of a run are in the cache; a prompt that is whole now can be recalled.
    pub(super) fn ran(&mut self, run: &Run) {
        let sequence = &mut self.live[run.live];
        let before = sequence.done;
        sequence.done += run.rows.len();
        let (prompt, cache) = (&sequence.request.prompt, &mut self.cache);
        let whole = (before + 1..=sequence.done).contains(&prompt.len());
        if let (true, Some(cache), PrefixCaching::On) = (whole, cache, self.options.prefix_caching) {
            cache.insert_prefix(sequence.lane, prompt);
        }
    }

    fn logits(&self, hidden: &Tensor, rows: &[usize]) -> Result<Tensor> {
        if rows.is_empty() {
            let none = [0, self.model.config().vocab];
            let none = Tensor::zeros(hidden.device(), &none, xtrain_tensor::Dtype::F32);
            return Ok(none.map_err(xtrain_model::Error::from)?);
        }
        Ok(self.model.logits(&super::gather::rows(hidden, rows)?)?)
    }

    /// A token for each run that ends its sequence, then for those who waited for its prompt.
    fn draw_from(&mut self, plan: &Plan, logits: &Tensor, mut watch: Watch<'_>) -> Result<()> {
        let n = logits.shape()[0];
        self.counters.head_rows += n as u64;
        if let (None, Some(choices)) = (&watch, self.drawn_by_device(plan, logits)?) {
            for (run, choice) in plan.runs.iter().filter(|run| run.draws).zip(choices) {
                let event = self.live[run.live].accept(choice, self.model.config());
                self.events.push(event);
            }
            return self.begin_waiting();
        }
        let data = logits.read::<f32>().map_err(xtrain_model::Error::from)?;
        let vocab = self.model.config().vocab;
        let (mut row, mut result) = (0, Ok(()));
        for run in &plan.runs {
            let sequence = &self.live[run.live];
            let (index, id) = (sequence.index, sequence.id);
            for at in run.rows.clone() {
                let last = run.draws && at + 1 == run.rows.end;
                if !last && self.options.logits_rows == LogitsRows::Sampled {
                    continue;
                }
                let logits = &data[row * vocab..][..vocab];
                row += 1;
                if let Some(watch) = &mut watch {
                    watch(LogitRow { index, id, position: plan.rows.pos[at] as usize, logits });
                }
                if last {
                    result = result.and(self.draw(run.live, logits));
                }
            }
        }
        result.and(self.begin_waiting())
    }

    /// The tokens as the GPU that holds the logits draws them, so that these stay there. None on a
    /// processor; where a row serves completions that fork from it; and where a row has no token, which
    /// the host says better.
    fn drawn_by_device(&self, plan: &Plan, logits: &Tensor) -> Result<Option<Vec<Choice>>> {
        let drawing = || plan.runs.iter().filter(|run| run.draws).map(|run| &self.live[run.live]);
        let on_gpu =
            matches!(logits.device(), Device::Gpu(_)) && self.options.logits_rows == LogitsRows::Sampled;
        if !on_gpu || drawing().any(|s| s.is_fresh() && self.groups.contains_key(&s.group)) {
            return Ok(None);
        }
        let first = self.live[0].id;
        let rows: Vec<SampleRow<'_>> = drawing().map(|s| s.sample_row(first, 0)).collect();
        let choice =
            |s: Sampled| Choice { token: s.token, logprob: s.log_prob, processed_logprob: s.processed };
        let drawn = ops::sample_rows(logits, &rows).map_err(xtrain_model::Error::from)?;
        Ok(drawn.into_iter().map(|s| s.map(choice).ok()).collect())
    }

    /// A token for the sequence at place `at` of those under way.
    pub(super) fn draw(&mut self, at: usize, logits: &[f32]) -> Result<()> {
        let first = self.live[0].id;
        let sequence = &mut self.live[at];
        if sequence.is_fresh()
            && let Some(group) = self.groups.get_mut(&sequence.group)
        {
            group.fresh -= 1;
            match group.fresh {
                0 => drop(self.groups.remove(&sequence.group)),
                _ => _ = group.logits.get_or_insert_with(|| logits.into()),
            }
        }
        let sampler = &mut self.samplers[sequence.sampler];
        let event = sequence.draw(sampler, logits, self.model.config(), first)?;
        self.events.push(event);
        Ok(())
    }
}
