//! The promise, checked on this machine: a rollout's logits have the bits of the training forward.
mod setting;
mod verdict;

pub use setting::{Prompts, ResolvedGeneration, Setting, settings};
pub use verdict::{Difference, Verdict};

use std::fmt;
use std::ops::Range;

use crate::decode::{self, Completion, Engine, EngineOptions, KvKind, LogitsRows, Request, generate_naive};
use crate::model::{self, Model, NoCache, Rows, Tape};
use crate::tensor::rng::{Purpose, uniform_u64};
use crate::tensor::{Device, Dtype, Simd};

/// Completions of the first prompt beside its own.
const FORKS: usize = 3;

/// Why a check could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A rollout.
    Decode(decode::Error),
    /// The training forward.
    Model(model::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Decode(e) => e.fmt(f),
            Error::Model(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<decode::Error> for Error {
    fn from(e: decode::Error) -> Error {
        Error::Decode(e)
    }
}

impl From<model::Error> for Error {
    fn from(e: model::Error) -> Error {
        Error::Model(e)
    }
}

/// What the others are held to: the naive rollout of every request, and the logits that the training
/// forward, under a tape and on one thread, gives for its whole sequence. In f32 it is the processor that
/// says them, to a GPU too; in bf16 a GPU is held to itself (docs/numerics.md, tier 3).
struct Oracle {
    completions: Vec<Completion>,
    logits: Vec<Vec<f32>>,
}

impl Oracle {
    fn new(model: &Model, requests: &[Request]) -> Result<Oracle, Error> {
        let model = match (model.device(), model.compute()) {
            (Device::Gpu(_), Dtype::BF16) => model.clone(),
            _ => model.to_device(&Device::cpu_with(1, Simd::detect()))?,
        };
        let mut oracle = Oracle { completions: Vec::new(), logits: Vec::new() };
        for request in requests {
            let completion = generate_naive(&model, request)?;
            let whole = [&request.prompt[..], &completion.tokens].concat();
            let rows = Rows::whole(&[whole]);
            let mut tape = Tape::new(rows.samples());
            let hidden = model.forward(&mut tape, &mut NoCache::new(&rows)?, &rows)?;
            let logits = model.logits(&hidden.value)?;
            oracle.logits.push(logits.to_vec::<f32>().map_err(model::Error::from)?);
            oracle.completions.push(completion);
        }
        Ok(oracle)
    }

    /// Rows of logits that the engine computes for `groups` of requests: of each sequence its prompt and
    /// its new tokens less one; a shared prompt once; without a cache all rows before a token for the token.
    fn rows(&self, groups: &[Range<usize>], kv: KvKind) -> u64 {
        let sizes = |at: usize| (self.completions[at].prompt_len, self.completions[at].tokens.len());
        let rows = |group: &Range<usize>| -> usize {
            match kv {
                KvKind::Off => {
                    group.clone().map(sizes).map(|(prompt, new)| (prompt..prompt + new).sum::<usize>()).sum()
                }
                _ => sizes(group.start).0 + group.clone().map(|at| sizes(at).1 - 1).sum::<usize>(),
            }
        };
        groups.iter().map(rows).sum::<usize>() as u64
    }
}

/// The requests that are submitted together: those that differ in nothing but ids that follow each other.
fn groups(requests: &[Request], prompts: Prompts) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (at, request) in requests.iter().enumerate() {
        match groups.last_mut() {
            Some(group)
                if prompts == Prompts::Shared && {
                    let first = &requests[group.start];
                    first.id.checked_add(group.len() as u64) == Some(request.id)
                        && Request { id: first.id, ..request.clone() } == *first
                } =>
            {
                group.end += 1;
            }
            _ => groups.push(at..at + 1),
        }
    }
    groups
}

/// Rolls `requests` out in every setting and compares each row of logits with the training forward's,
/// each token and each log-probability with the naive rollout's. `done` is told each verdict as it comes.
///
/// # Errors
/// A request that the model cannot serve.
pub fn verify(
    model: &Model,
    requests: &[Request],
    asked: &ResolvedGeneration,
    done: &mut dyn FnMut(&Verdict),
) -> Result<Vec<Verdict>, Error> {
    let oracle = Oracle::new(model, requests)?;
    let mut verdicts = Vec::new();
    for setting in settings(requests.len(), asked, model.device()) {
        let verdict = check(model, requests, &oracle, setting)?;
        done(&verdict);
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

fn check(model: &Model, requests: &[Request], oracle: &Oracle, setting: Setting) -> Result<Verdict, Error> {
    // what commands roll out, held to what is trained
    let model = model.to_device(&setting.device)?.for_inference()?;
    let options = EngineOptions {
        kv: setting.kv,
        prefill_chunk: setting.chunk,
        max_batch: setting.batch,
        logits_rows: LogitsRows::All,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(&model, options)?;
    let groups = groups(requests, setting.prompts);
    for group in &groups {
        // places in the order of submission are places among the requests
        engine.submit_group(requests[group.start].clone(), group.len())?;
    }
    let rows_due = oracle.rows(&groups, setting.kv);
    let (rows, values, differing, tokens_differing) = (0, 0, 0, 0);
    let mut verdict = Verdict { setting, rows, rows_due, values, differing, tokens_differing, first: None };
    let v = model.config().vocab;
    while !engine.is_idle() {
        engine.step_watched(&mut |row| {
            let want = oracle.logits[row.index].get(row.position * v..(row.position + 1) * v).unwrap_or(&[]);
            verdict.rows += 1;
            verdict.compare((row.id, row.position), row.logits, want, |at| format!("logit {at}"));
        })?;
    }
    for got in engine.take_finished() {
        verdict.compare_completion(&got, &oracle.completions[got.index]);
    }
    Ok(verdict)
}

/// Prompts drawn from `seed`, of ragged lengths that fit a model of `positions` with `max_new` more
/// tokens, to be completed by [`requests`].
pub fn prompts(model: &Model, (seed, count): (u64, usize), max_new: usize) -> Vec<Vec<u32>> {
    let cfg = model.config();
    let longest = cfg.max_positions.saturating_sub(max_new).clamp(1, 80) as u64;
    let below = |id: u64, at: u32, n: u64| {
        ((u128::from(uniform_u64(seed, id, at, Purpose::Prompts)) * u128::from(n)) >> 64) as u64
    };
    let prompt = |i: u64| {
        let length = 1 + below(i, 0, longest);
        (1..=length).map(|at| below(i, at as u32, cfg.vocab as u64) as u32).collect()
    };
    (0..count as u64).map(prompt).collect()
}

/// A completion of each prompt, and three more of the first, which can fork from it. Every other prompt
/// is completed greedily.
pub fn requests(prompts: &[Vec<u32>], max_new: usize, seed: u64) -> Vec<Request> {
    let places = [0; FORKS].into_iter().chain(0..prompts.len());
    let request = |(id, at): (usize, usize)| {
        let temperature = if at % 2 == 0 { 1.0 } else { 0.0 };
        Request { id: id as u64, ..Request::sampled(&prompts[at], max_new, temperature, seed) }
    };
    places.enumerate().map(request).collect()
}
