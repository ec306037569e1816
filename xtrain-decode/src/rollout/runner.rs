//! The runner: executes plans with the model and the samplers.
//!
//! On a GPU it can run several decode steps before it synchronizes. Which rows run, at which positions and with
//! which random numbers does not depend on the sampled tokens, so the host uploads all of it before the first step.
//! Tokens and log-probabilities stay on the device, where each step reads the tokens of the step before. The
//! scheduler drops the tokens after the end of a sequence, so tokens, bits and the order in which sequences
//! finish are the same as with one synchronization per step.
use std::vec::Drain;

use xtrain_model::{Eager, NoCache, Result as ModelResult, Rows};
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, DeviceSampler, SampleRow, Sampled as DeviceSample};
use xtrain_tensor::{Device, Dtype, Tensor};

use super::completion::LogitRow;
use super::model_handle::ModelHandle;
use super::options::{EngineOptions, LogitsRows};
use super::plan::{DecodedStep, ForkedSample, Outcome, Plan, Run, SampleSpec, SamplerId};
use super::sequence::Sequence;
use crate::cache::Cache;
use crate::error::Result;
use crate::sampler::{Choice, SampleError, SampleOptions, Sampler};

/// A callback that receives every row of logits. `None`: there is none.
pub(super) type Watch<'w> = Option<&'w mut dyn FnMut(LogitRow<'_>)>;

/// The plan of a step, and the running sequences that it names by index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch<'a> {
    pub(super) plan: &'a Plan,
    pub(super) running: &'a [Sequence],
}

impl<'a> Batch<'a> {
    /// The runs that a token is sampled from, and how.
    fn sampled(self) -> impl Iterator<Item = (&'a Run, &'a SampleSpec)> {
        self.plan.runs.iter().filter_map(|run| Some((run, run.spec.as_ref()?)))
    }
}

/// The model and everything that sampling writes to.
#[derive(Debug)]
pub(super) struct Runner<'m> {
    model: ModelHandle<'m>,
    options: EngineOptions,
    samplers: Vec<Sampler>,
    /// The outcomes of a step. Empty between steps; kept for its memory.
    outcomes: Vec<Outcome>,
    /// The tokens before a drafted row, for the repetition penalty. Kept for its memory.
    history: Vec<u32>,
    /// Tokens that are sampled and not yet on the host. `None`: none was needed so far.
    device_sampler: Option<DeviceSampler>,
}

impl<'m> Runner<'m> {
    pub(super) fn new(model: ModelHandle<'m>, options: EngineOptions) -> Runner<'m> {
        Runner {
            model,
            options,
            samplers: Vec::new(),
            outcomes: Vec::new(),
            history: Vec::new(),
            device_sampler: None,
        }
    }

    /// The sampler for `options`, created if there is none yet.
    pub(super) fn sampler(&mut self, options: SampleOptions) -> Result<SamplerId, SampleError> {
        if let Some(at) = self.samplers.iter().position(|s| *s.options() == options) {
            return Ok(SamplerId(at));
        }
        self.samplers.push(Sampler::new(options)?);
        Ok(SamplerId(self.samplers.len() - 1))
    }

    /// Maximum number of decode steps without synchronizing. 0: the host needs every token (on the CPU, with the
    /// logits of all rows, with one step per synchronization, or with a cache that cannot drop surplus rows).
    pub(super) fn max_steps(&self) -> usize {
        let on_gpu = matches!(self.model.device(), Device::Gpu(_));
        let EngineOptions { kv, logits_rows, steps_per_sync, .. } = self.options;
        let rewinds = kv.keeps_all() || faults::on(Fault::SinksDecodedAhead);
        let possible = on_gpu && rewinds && logits_rows == LogitsRows::Sampled && steps_per_sync > 1;
        if possible { self.options.max_steps(self.model.config()) } else { 0 }
    }

    /// One forward pass: the final hidden states `[N, C]` of the rows.
    pub(super) fn forward(&self, plan: &Plan, cache: &mut Option<Box<dyn Cache>>) -> ModelResult<Tensor> {
        match cache {
            Some(cache) => self.model.forward(&mut Eager, &mut **cache, &plan.rows),
            None => self.model.forward(&mut Eager, &mut NoCache::new(&plan.rows)?, &plan.rows),
        }
    }

    /// Samples a token for each run of the plan that ends its sequence. `watch` gets every computed row of logits.
    pub(super) fn sample(
        &mut self,
        batch: Batch<'_>,
        hidden: &Tensor,
        watch: Watch<'_>,
    ) -> Result<Drain<'_, Outcome>> {
        let logits = self.logits(batch.plan, hidden)?;
        self.outcomes.clear();
        let on_device = if watch.is_none() { self.sample_on_device(batch, &logits)? } else { None };
        match on_device {
            Some(outcomes) => self.outcomes = outcomes,
            None => self.sample_on_host(batch, &logits, watch)?,
        }
        Ok(self.outcomes.drain(..))
    }

    /// The logits of all rows, or of those that a token is sampled from.
    fn logits(&self, plan: &Plan, hidden: &Tensor) -> Result<Tensor> {
        #[cfg(test)]
        if super::tests::HEAD_FAILS.get() {
            return Err(crate::error::Error::option("head", "memory", "none"));
        }
        if self.options.logits_rows == LogitsRows::All || plan.sampled_rows.len() == plan.rows.len() {
            return Ok(self.model.logits(hidden)?);
        }
        if plan.sampled_rows.is_empty() {
            return Ok(Tensor::zeros(hidden.device(), &[0, self.model.config().vocab], Dtype::F32)?);
        }
        Ok(self.model.logits(&ops::gather_rows(hidden, &plan.sampled_rows)?)?)
    }

    fn sample_on_host(&mut self, batch: Batch<'_>, logits: &Tensor, mut watch: Watch<'_>) -> Result<()> {
        let data = logits.read::<f32>()?;
        let mut rows_of_logits = data.chunks_exact(self.model.config().vocab);
        for run in &batch.plan.runs {
            let Run { running, rows, .. } = run;
            let sequence = &batch.running[*running];
            // the rows from here on are not those of the sequence
            let mut dropped = false;
            for at in rows.clone() {
                let spec = run.spec.as_ref().filter(|_| run.sampled().contains(&at));
                if spec.is_none() && self.options.logits_rows == LogitsRows::Sampled {
                    continue;
                }
                let logits =
                    rows_of_logits.next().expect("a row of logits for each row that the head ran on");
                if dropped {
                    continue;
                }
                if let Some(watch) = &mut watch {
                    let position = batch.plan.rows.pos[at] as usize;
                    let followers = batch.running.iter().filter(|s| s.leader == Some(sequence.index));
                    let all = std::iter::once(sequence).chain(followers.filter(|_| sequence.followers > 0));
                    all.for_each(|s| watch(LogitRow { index: s.index, id: s.id, position, logits }));
                }
                if let Some(spec) = spec {
                    let shared = spec.shares_logits.then(|| logits.into());
                    let mut choice = self.pick_after(run, spec, at, batch, logits);
                    if at + 1 < rows.end {
                        dropped =
                            ends_draft(&mut choice, batch.plan.rows.id[at + 1], &batch.running[run.running]);
                    }
                    let top = if choice.is_ok() { sequence.top_of(logits) } else { Vec::new() };
                    self.outcomes.push(Outcome { running: *running, choice, top, logits: shared });
                }
            }
        }
        Ok(())
    }

    /// Samples on the GPU that holds the logits, so that they are not downloaded. `None`: on the CPU, if sequences
    /// that fork from a prompt need its logits, if a sequence has a constraint or requests the most probable tokens, and
    /// if a row has no token, because the host gives the better error.
    fn sample_on_device(&self, batch: Batch<'_>, logits: &Tensor) -> Result<Option<Vec<Outcome>>> {
        let on_gpu = matches!(logits.device(), Device::Gpu(_));
        let all_rows = self.options.logits_rows == LogitsRows::All;
        let on_host = |(run, spec): (&Run, &SampleSpec)| {
            let penalized = !batch.running[run.running].penalized_tokens().is_empty();
            let needs_logits = batch.running[run.running].samples_on_host();
            let drafted = run.drafted > 0 && !faults::on(Fault::DraftsPenalizedAlone);
            spec.shares_logits || needs_logits || drafted && penalized
        };
        if !on_gpu || all_rows || batch.sampled().any(on_host) {
            return Ok(None);
        }
        let mut samples = ops::sample_rows(logits, &self.device_rows(batch, 0))?.into_iter();
        let mut outcomes = Vec::new();
        for (run, _) in batch.sampled() {
            let mut dropped = false;
            for (at, sample) in run.sampled().zip(samples.by_ref()) {
                if dropped {
                    continue;
                }
                let Ok(sample) = sample else { return Ok(None) };
                let mut choice = Ok(choice(sample));
                if at + 1 < run.rows.end {
                    dropped =
                        ends_draft(&mut choice, batch.plan.rows.id[at + 1], &batch.running[run.running]);
                }
                outcomes.push(Outcome { running: run.running, choice, top: Vec::new(), logits: None });
            }
        }
        Ok(Some(outcomes))
    }

    /// Samples the first tokens of sequences that forked their prompt.
    pub(super) fn sample_forked(&mut self, forked: &[ForkedSample], running: &[Sequence]) -> Vec<Outcome> {
        let outcome = |forked: &ForkedSample| {
            let sequence = &running[forked.running];
            let choice = self.pick(&forked.spec, sequence, &forked.logits);
            let is_due = choice.is_ok() && !faults::on(Fault::TopTokensOfForksLost);
            let top = if is_due { sequence.top_of(&forked.logits) } else { Vec::new() };
            Outcome { running: forked.running, choice, top, logits: None }
        };
        forked.iter().map(outcome).collect()
    }

    /// The token after row `at` of `run`, which is the row of its last token or of a drafted one.
    fn pick_after(
        &mut self,
        run: &Run,
        spec: &SampleSpec,
        at: usize,
        batch: Batch<'_>,
        logits: &[f32],
    ) -> Result<Choice, SampleError> {
        let sequence = &batch.running[run.running];
        let first = run.sampled().start;
        if at == first {
            return self.pick(spec, sequence, logits);
        }
        let mut history = std::mem::take(&mut self.history);
        history.clear();
        history.extend_from_slice(sequence.penalized_tokens());
        if !history.is_empty() && !faults::on(Fault::DraftHistoryIgnored) {
            history.extend_from_slice(&batch.plan.rows.id[first + 1..=at]);
        }
        let (sampler, address) = (&mut self.samplers[spec.sampler.0], spec.address_after(at - first));
        let mask = sequence.mask(at - first);
        let choice = mask.and_then(|mask| sampler.pick_allowed(logits, &history, mask, address));
        self.history = history;
        choice
    }

    fn pick(&mut self, spec: &SampleSpec, from: &Sequence, logits: &[f32]) -> Result<Choice, SampleError> {
        let sampler = &mut self.samplers[spec.sampler.0];
        sampler.pick_allowed(logits, from.penalized_tokens(), from.mask(0)?, spec.address)
    }

    pub(super) fn decode_steps(
        &mut self,
        batch: Batch<'_>,
        steps: usize,
        cache: &mut dyn Cache,
    ) -> Result<Vec<DecodedStep>> {
        let mut rows = batch.plan.rows.clone();
        let mut sampler = match self.device_sampler.take().filter(|sampler| sampler.capacity() >= rows.len())
        {
            Some(sampler) => sampler,
            None => {
                DeviceSampler::new(self.model.device(), rows.len().next_power_of_two(), self.max_steps())?
            }
        };
        self.upload_schedule(&rows, steps, cache, &mut sampler)?;
        for step in 0..steps {
            let embeddings = self.model.embed_sampled(&sampler)?;
            let hidden = self.model.forward_embeds(&mut Eager, cache, &rows, embeddings)?;
            sampler.sample(&self.model.logits(&hidden)?, &self.device_rows(batch, step as u32))?;
            rows.pos.iter_mut().for_each(|pos| *pos += 1);
        }
        let tokens = sampler.read_back()?;
        self.device_sampler = Some(sampler);
        let choices = |step: Vec<std::result::Result<DeviceSample, _>>| {
            step.into_iter().map(|sample| sample.ok().map(choice)).collect()
        };
        Ok(tokens.into_iter().map(choices).collect())
    }

    /// Uploads what the device needs for all steps: tokens, positions, slots and RoPE angles.
    fn upload_schedule(
        &self,
        rows: &Rows,
        steps: usize,
        cache: &dyn Cache,
        sampler: &mut DeviceSampler,
    ) -> Result<()> {
        let lists = |step: usize| {
            let pos: Vec<u32> = rows.pos.iter().map(|&pos| pos + step as u32).collect();
            let rows = rows.seq.iter().zip(&pos);
            let slots: Option<Vec<u32>> = rows.map(|(&seq, &pos)| cache.slot(seq, pos as usize)).collect();
            [Some(pos), slots].into_iter().flatten().collect()
        };
        let positions = |&pos: &u32| (0..steps).map(move |step| pos as usize + step);
        self.model.prefetch_rope(rows.pos.iter().flat_map(positions))?;
        Ok(sampler.stage(&rows.id, (0..steps).map(lists).collect())?)
    }

    /// How a device samples the tokens `steps` steps after the next ones.
    fn device_rows<'a>(&self, batch: Batch<'a>, steps: u32) -> Vec<SampleRow<'a>> {
        let row = |(run, spec, ahead): (&Run, &SampleSpec, usize)| {
            let options = self.samplers[spec.sampler.0].options();
            let address = spec.address_after(ahead);
            let &SampleOptions { temperature, top_k, top_p, min_p, repetition_penalty } = options;
            SampleRow {
                seed: address.seed,
                id: address.id,
                position: address.position + steps,
                temperature,
                top_k: device_top_k(top_k),
                top_p: top_p.unwrap_or(1.0),
                min_p: min_p.filter(|_| !faults::on(Fault::MinPNotOnDevice)).unwrap_or(0.0),
                penalty: repetition_penalty.unwrap_or(1.0),
                seen: batch.running[run.running].penalized_tokens(),
            }
        };
        let rows =
            |(run, spec): (&'a Run, &'a SampleSpec)| (0..=run.drafted).map(move |ahead| (run, spec, ahead));
        batch.sampled().flat_map(rows).map(row).collect()
    }
}

/// Whether the drafted tokens from `drafted` on are dropped: the sampler chose another token or none, or one that ends
/// the sequence.
fn ends_draft(choice: &mut Result<Choice, SampleError>, drafted: u32, sequence: &Sequence) -> bool {
    match choice {
        Ok(choice) if choice.token == drafted => {
            sequence.stops_at(drafted) && !faults::on(Fault::DraftKeptAfterEnd)
        }
        Ok(_) if faults::on(Fault::DraftAcceptedOneTooMany) => false,
        Ok(choice) => {
            if faults::on(Fault::DraftTakenForSampled) {
                choice.token = drafted;
            }
            true
        }
        Err(_) => true,
    }
}

fn choice(sample: DeviceSample) -> Choice {
    Choice { token: sample.token, logprob: sample.log_prob, processed_logprob: sample.processed }
}

/// Top-k for a device, 0: keep all. A vocabulary has less than 2^32 tokens.
pub(super) fn device_top_k(top_k: Option<usize>) -> u32 {
    let k = top_k.unwrap_or(0);
    if faults::on(Fault::TopKCutToU32) { k as u32 } else { u32::try_from(k).unwrap_or(u32::MAX) }
}
