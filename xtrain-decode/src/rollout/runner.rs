//! The runner: executes plans with the model, the cache and the samplers.
//!
//! On a GPU it can run several decode steps before it synchronizes. Which rows run, at which positions and with
//! which random numbers does not depend on the sampled tokens, so the host uploads all of it before the first step.
//! Tokens and log-probabilities stay on the device, where each step reads the tokens of the step before. The
//! scheduler drops the tokens after the end of a sequence, so tokens, bits and the order in which sequences
//! finish are the same as with one synchronization per step.
use xtrain_model::{Eager, Model, NoCache, Result as ModelResult};
use xtrain_tensor::ops::{self, DeviceSampler, SampleRow, Sampled as DeviceSample};
use xtrain_tensor::{Device, Dtype, Tensor};

use super::completion::LogitRow;
use super::gather;
use super::options::{EngineOptions, LogitsRows};
use super::outcome::{DecodedStep, Outcome, Sampled};
use super::plan::{ForkedSample, Plan, Run, SampleSpec, SamplerId};
use crate::cache::Cache;
use crate::error::Result;
use crate::sampler::{Choice, SampleError, SampleOptions, Sampler};

/// A callback that receives every row of logits. `None`: there is none.
pub(super) type Watch<'w> = Option<&'w mut dyn FnMut(LogitRow<'_>)>;

/// The model and everything that a forward pass writes to.
#[derive(Debug)]
pub(super) struct Runner<'m> {
    model: &'m Model,
    cache: Option<Box<dyn Cache>>,
    samplers: Vec<Sampler>,
    /// Tokens that are sampled and not yet on the host. `None`: none was needed so far.
    device_sampler: Option<DeviceSampler>,
    logits_rows: LogitsRows,
    /// Maximum number of decode steps between two synchronizations. 0: it synchronizes after each forward pass.
    max_steps: usize,
}

impl<'m> Runner<'m> {
    pub(super) fn new(model: &'m Model, options: &EngineOptions) -> Result<Runner<'m>> {
        Ok(Runner {
            model,
            cache: options.cache(model)?,
            samplers: Vec::new(),
            device_sampler: None,
            logits_rows: options.logits_rows,
            max_steps: if options.steps_per_sync > 1 { options.max_steps(model.config()) } else { 0 },
        })
    }

    pub(super) fn cache(&self) -> Option<&dyn Cache> {
        self.cache.as_deref()
    }

    pub(super) fn cache_mut(&mut self) -> &mut Option<Box<dyn Cache>> {
        &mut self.cache
    }

    /// The sampler for `options`, created if there is none yet.
    pub(super) fn sampler(&mut self, options: SampleOptions) -> Result<SamplerId, SampleError> {
        if let Some(at) = self.samplers.iter().position(|s| *s.options() == options) {
            return Ok(SamplerId(at));
        }
        self.samplers.push(Sampler::new(options)?);
        Ok(SamplerId(self.samplers.len() - 1))
    }

    /// Number of decode steps that can run without synchronizing. 0: the host needs every token (on the CPU, without
    /// a cache, with the logits of all rows, or with one step per synchronization).
    pub(super) fn max_multi_steps(&self) -> usize {
        let on_gpu = matches!(self.model.device(), Device::Gpu(_));
        let possible = on_gpu && self.cache.is_some() && self.logits_rows == LogitsRows::Sampled;
        if possible { self.max_steps } else { 0 }
    }

    /// One forward pass: the final hidden states `[N, C]` of the rows.
    pub(super) fn forward(&mut self, plan: &Plan) -> Result<Tensor> {
        let rows = &plan.rows;
        Ok(match &mut self.cache {
            Some(cache) => self.model.forward(&mut Eager, cache, rows)?,
            None => self.model.forward(&mut Eager, &mut NoCache::new(rows)?, rows)?,
        })
    }

    /// Samples a token for each run of the plan that ends its sequence. `watch` receives every row of logits that is
    /// computed.
    pub(super) fn sample(&mut self, plan: &Plan, hidden: &Tensor, watch: Watch<'_>) -> Result<Sampled> {
        let logits = match self.logits_rows {
            LogitsRows::Sampled => self.logits(hidden, &plan.sampled_rows)?,
            LogitsRows::All => self.logits(hidden, &(0..plan.rows.len()).collect::<Vec<_>>())?,
        };
        let on_device = if watch.is_none() { self.sample_on_device(plan, &logits)? } else { None };
        let outcomes = match on_device {
            Some(outcomes) => outcomes,
            None => self.sample_on_host(plan, &logits, watch)?,
        };
        Ok(Sampled { outcomes, logits_rows: logits.shape()[0] })
    }

    fn logits(&self, hidden: &Tensor, rows: &[usize]) -> Result<Tensor> {
        if rows.is_empty() {
            let none = [0, self.model.config().vocab];
            return Ok(Tensor::zeros(hidden.device(), &none, Dtype::F32).map_err(xtrain_model::Error::from)?);
        }
        Ok(self.model.logits(&gather::rows(hidden, rows)?)?)
    }

    fn sample_on_host(&mut self, plan: &Plan, logits: &Tensor, mut watch: Watch<'_>) -> Result<Vec<Outcome>> {
        let data = logits.read::<f32>().map_err(xtrain_model::Error::from)?;
        let mut rows_of_logits = data.chunks_exact(self.model.config().vocab);
        let mut outcomes = Vec::new();
        for Run { running, index, id, rows, spec } in &plan.runs {
            for at in rows.clone() {
                let spec = spec.as_ref().filter(|_| at + 1 == rows.end);
                if spec.is_none() && self.logits_rows == LogitsRows::Sampled {
                    continue;
                }
                let logits =
                    rows_of_logits.next().expect("a row of logits for each row that the head ran on");
                if let Some(watch) = &mut watch {
                    watch(LogitRow { index: *index, id: *id, position: plan.rows.pos[at] as usize, logits });
                }
                if let Some(spec) = spec {
                    let shared = spec.shares_logits.then(|| logits.into());
                    let choice = pick(&mut self.samplers, spec, logits);
                    outcomes.push(Outcome { running: *running, choice, logits: shared });
                }
            }
        }
        Ok(outcomes)
    }

    /// Samples on the GPU that holds the logits, so that they are not downloaded. `None`: on the CPU, if sequences
    /// that fork from a prompt need its logits, and if a row has no token, because the host gives the better error.
    fn sample_on_device(&self, plan: &Plan, logits: &Tensor) -> Result<Option<Vec<Outcome>>> {
        let specs = || plan.runs.iter().filter_map(|run| Some((run.running, run.spec.as_ref()?)));
        let on_gpu = matches!(logits.device(), Device::Gpu(_)) && self.logits_rows == LogitsRows::Sampled;
        if !on_gpu || specs().any(|(_, spec)| spec.shares_logits) {
            return Ok(None);
        }
        let rows: Vec<SampleRow<'_>> = specs().map(|(_, spec)| self.device_row(spec, 0)).collect();
        let samples = ops::sample_rows(logits, &rows).map_err(xtrain_model::Error::from)?;
        let outcome = |((running, _), sample): (_, std::result::Result<DeviceSample, _>)| {
            Some(Outcome { running, choice: Ok(choice(sample.ok()?)), logits: None })
        };
        Ok(specs().zip(samples).map(outcome).collect())
    }

    /// Samples the first tokens of sequences that forked their prompt.
    pub(super) fn sample_forked(&mut self, forked: &[ForkedSample]) -> Vec<Outcome> {
        let mut outcome = |forked: &ForkedSample| {
            let choice = pick(&mut self.samplers, &forked.spec, &forked.logits);
            Outcome { running: forked.running, choice, logits: None }
        };
        forked.iter().map(&mut outcome).collect()
    }

    /// Runs `steps` decode steps without synchronizing. Afterwards the positions of the plan are those of the last
    /// step.
    pub(super) fn decode_steps(&mut self, plan: &mut Plan, steps: usize) -> Result<Vec<DecodedStep>> {
        let rows = plan.runs.len();
        let mut sampler = match self.device_sampler.take().filter(|sampler| sampler.capacity() >= rows) {
            Some(sampler) => sampler,
            None => DeviceSampler::new(self.model.device(), rows.next_power_of_two(), self.max_steps)
                .map_err(xtrain_model::Error::from)?,
        };
        self.upload_schedule(plan, steps, &mut sampler)?;
        for step in 0..steps {
            if step > 0 {
                plan.rows.pos.iter_mut().for_each(|pos| *pos += 1);
            }
            self.decode_step(plan, &mut sampler, step)?;
        }
        let tokens = sampler.read_back().map_err(xtrain_model::Error::from)?;
        self.device_sampler = Some(sampler);
        let choices = |step: Vec<std::result::Result<DeviceSample, _>>| {
            step.into_iter().map(|sample| sample.ok().map(choice)).collect()
        };
        Ok(tokens.into_iter().map(choices).collect())
    }

    /// Uploads what the device needs for all steps: tokens, positions, slots and RoPE angles.
    fn upload_schedule(&self, plan: &Plan, steps: usize, sampler: &mut DeviceSampler) -> ModelResult<()> {
        let cache = self.cache.as_ref().expect("several steps without a synchronization have a cache");
        let lists = |step: usize| {
            let pos: Vec<u32> = plan.rows.pos.iter().map(|&pos| pos + step as u32).collect();
            let rows = plan.rows.seq.iter().zip(&pos);
            let slots: Option<Vec<u32>> = rows.map(|(&seq, &pos)| cache.slot(seq, pos as usize)).collect();
            [Some(pos), slots].into_iter().flatten().collect()
        };
        let positions = |&pos: &u32| (0..steps).map(move |step| pos as usize + step);
        self.model.prefetch_rope(plan.rows.pos.iter().flat_map(positions))?;
        Ok(sampler.stage(&plan.rows.id, (0..steps).map(lists).collect())?)
    }

    fn decode_step(&mut self, plan: &Plan, sampler: &mut DeviceSampler, step: usize) -> ModelResult<()> {
        let cache = self.cache.as_mut().expect("several steps without a synchronization have a cache");
        let h = self.model.embed_sampled(sampler)?;
        let hidden = self.model.forward_embeds(&mut Eager, cache, &plan.rows, h)?;
        let specs = plan.runs.iter().filter_map(|run| run.spec.as_ref());
        let rows: Vec<SampleRow<'_>> = specs.map(|spec| self.device_row(spec, step as u32)).collect();
        Ok(sampler.sample(&self.model.logits(&hidden)?, &rows)?)
    }

    /// How a device samples the token `steps` steps after the next one.
    fn device_row<'a>(&self, spec: &'a SampleSpec, steps: u32) -> SampleRow<'a> {
        let options = self.samplers[spec.sampler.0].options();
        let &SampleOptions { temperature, top_k, top_p, min_p, repetition_penalty } = options;
        SampleRow {
            seed: spec.address.seed,
            id: spec.address.id,
            position: spec.address.position + steps,
            temperature,
            top_k: top_k.unwrap_or(0) as u32,
            top_p: top_p.unwrap_or(1.0),
            min_p: min_p.unwrap_or(0.0),
            penalty: repetition_penalty.unwrap_or(1.0),
            seen: &spec.history,
        }
    }
}

fn pick(samplers: &mut [Sampler], spec: &SampleSpec, logits: &[f32]) -> Result<Choice, SampleError> {
    samplers[spec.sampler.0].pick(logits, &spec.history, spec.address)
}

fn choice(sample: DeviceSample) -> Choice {
    Choice { token: sample.token, logprob: sample.log_prob, processed_logprob: sample.processed }
}
