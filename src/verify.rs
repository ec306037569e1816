//! The promise, checked on this machine: a rollout's logits have the bits of the training forward.
use std::collections::HashMap;
use std::fmt;

use crate::decode::{self, Engine, EngineOptions, HeadRows, KvKind, Request, generate_naive};
use crate::model::{self, Model, NoCache, Rows, Tape};
use crate::tensor::{Device, Simd};

/// One way to compute the same rollouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Where keys and values are kept.
    pub kv: KvKind,
    /// The most rows of one prompt in a step; none: the whole prompt.
    pub chunk: Option<usize>,
    /// The most sequences at a time.
    pub batch: usize,
    /// Threads.
    pub threads: usize,
    /// Instructions.
    pub simd: Simd,
}

/// What a setting was found to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The setting.
    pub setting: Setting,
    /// Rows of logits that were compared.
    pub rows: u64,
    /// Values that were compared.
    pub values: u64,
    /// Values whose bits differ.
    pub differing: u64,
    /// New tokens that differ from the naive rollout's.
    pub tokens_differing: u64,
    /// The sequence and position of the first row that differs.
    pub first: Option<(usize, usize)>,
}

impl Verdict {
    /// Whether every value and token is the same.
    pub fn holds(&self) -> bool {
        self.differing == 0 && self.tokens_differing == 0
    }
}

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

/// What a caller asks to be checked beside the fixed settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Threads.
    pub threads: usize,
    /// Where keys and values are kept.
    pub kv: KvKind,
    /// The most rows of one prompt in a step.
    pub chunk: Option<usize>,
}

/// The settings that are checked: what was asked for first; then every cache, pages smaller and larger than a chunk of keys, prompts
/// whole and in pieces, one sequence at a time and all at once, one thread and `threads`, and every
/// instruction set of this machine.
pub fn settings(requests: usize, asked: &Asked) -> Vec<Setting> {
    let threads = asked.threads;
    let all = requests.max(1);
    let widest = Simd::detect();
    let row = |kv, chunk, batch, threads, simd| Setting { kv, chunk, batch, threads, simd };
    let mut rows = vec![
        row(asked.kv, asked.chunk, all, threads, widest),
        row(KvKind::Off, None, all, 1, widest),
        row(KvKind::Growing, None, 1, 1, widest),
        row(KvKind::Growing, Some(7), all, threads, widest),
        row(KvKind::Contiguous, None, 1, threads, widest),
        row(KvKind::Contiguous, Some(1), all, 1, widest),
        row(KvKind::Paged { page: 1 }, None, all, threads, widest),
        row(KvKind::Paged { page: 5 }, Some(3), 2, 1, widest),
        row(KvKind::Paged { page: 16 }, None, all, threads, widest),
        row(KvKind::Paged { page: 16 }, Some(1), 3, threads + 1, widest),
        row(KvKind::Paged { page: 100 }, Some(11), all, threads, widest),
    ];
    let others = Simd::available().filter(|&s| s != widest && s != Simd::Reference);
    rows.extend(others.map(|simd| row(KvKind::Paged { page: 16 }, None, all, 1, simd)));
    rows
}

/// What the others are held to: the naive rollout of every request, and the logits that the training
/// forward, under a tape and on one thread, gives for its whole sequence.
struct Oracle {
    tokens: Vec<Vec<u32>>,
    logits: Vec<Vec<f32>>,
}

impl Oracle {
    fn new(model: &Model, requests: &[Request]) -> Result<Oracle, Error> {
        let model = model.on(&Device::cpu_with(1, Simd::detect()))?;
        let mut oracle = Oracle { tokens: Vec::new(), logits: Vec::new() };
        for request in requests {
            let tokens = generate_naive(&model, request)?.tokens;
            let whole = [&request.prompt[..], &tokens].concat();
            let rows = Rows::whole(&[whole]);
            let mut tape = Tape::new(rows.samples());
            let hidden = model.forward(&mut tape, &mut NoCache::new(&rows)?, &rows)?;
            let logits = model.logits(&hidden.value)?;
            oracle.logits.push(logits.to_vec::<f32>().map_err(model::Error::from)?);
            oracle.tokens.push(tokens);
        }
        Ok(oracle)
    }
}

/// Rolls `requests` out in every setting and compares each row of logits with the training forward's,
/// and each token with the naive rollout's. `done` is told each verdict as it comes.
///
/// # Errors
/// A request that the model cannot serve.
pub fn verify(
    model: &Model,
    requests: &[Request],
    asked: &Asked,
    done: &mut dyn FnMut(&Verdict),
) -> Result<Vec<Verdict>, Error> {
    let oracle = Oracle::new(model, requests)?;
    let mut verdicts = Vec::new();
    for setting in settings(requests.len(), asked) {
        let verdict = check(model, requests, &oracle, setting)?;
        done(&verdict);
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

fn check(model: &Model, requests: &[Request], oracle: &Oracle, setting: Setting) -> Result<Verdict, Error> {
    let model = model.on(&Device::cpu_with(setting.threads, setting.simd))?;
    let options = EngineOptions {
        kv: setting.kv,
        prefill_chunk: setting.chunk,
        max_batch: setting.batch,
        head: HeadRows::All,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(&model, options)?;
    let mut places = HashMap::new();
    for (i, request) in requests.iter().enumerate() {
        places.insert(engine.submit(request.clone())?, i);
    }
    let mut verdict = Verdict { setting, rows: 0, values: 0, differing: 0, tokens_differing: 0, first: None };
    let v = model.config().vocab;
    while !engine.is_idle() {
        engine.step_watched(&mut |row| {
            let at = places[&row.index];
            let want = oracle.logits[at].get(row.position * v..(row.position + 1) * v).unwrap_or(&[]);
            let same = row.logits.iter().zip(want).filter(|(a, b)| a.to_bits() == b.to_bits()).count();
            let differing = (row.logits.len() - same) as u64;
            verdict.rows += 1;
            verdict.values += row.logits.len() as u64;
            verdict.differing += differing;
            if differing > 0 && verdict.first.is_none() {
                verdict.first = Some((at, row.position));
            }
        })?;
    }
    for completion in engine.take_finished() {
        let want = &oracle.tokens[places[&completion.index]];
        let same = completion.tokens.iter().zip(want).filter(|(a, b)| a == b).count();
        verdict.tokens_differing += (completion.tokens.len().max(want.len()) - same) as u64;
    }
    Ok(verdict)
}

/// Prompts drawn from `seed`, of ragged lengths that fit a model of `positions` with `max_new` more
/// tokens: each its own sequence number.
pub fn prompts(model: &Model, (seed, count): (u64, usize), max_new: usize) -> Vec<Request> {
    use crate::tensor::rng::{Purpose, uniform_u64};
    let cfg = model.config();
    let longest = cfg.max_positions.saturating_sub(max_new).clamp(1, 80) as u64;
    let below = |id: u64, at: u32, n: u64| {
        ((u128::from(uniform_u64(seed, id, at, Purpose::Speculative)) * u128::from(n)) >> 64) as u64
    };
    let request = |i: u64| {
        let length = 1 + below(i, 0, longest);
        let prompt: Vec<u32> = (1..=length).map(|at| below(i, at as u32, cfg.vocab as u64) as u32).collect();
        let temperature = if i.is_multiple_of(2) { 1.0 } else { 0.0 };
        Request { id: i, ..Request::sampled(&prompt, max_new, temperature, seed) }
    };
    (0..count as u64).map(request).collect()
}
