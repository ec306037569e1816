//! The promise, checked on this machine: a rollout's logits have the bits of the training forward.
use std::fmt;
use std::ops::Range;

use crate::decode::{self, Completion, Engine, EngineOptions, HeadRows, KvKind, Request, generate_naive};
use crate::model::{self, Model, NoCache, Rows, Tape};
use crate::tensor::rng::{Purpose, uniform_u64};
use crate::tensor::{Device, Dtype, Simd};

/// Completions of the first prompt beside its own.
const FORKS: usize = 3;

/// One way to compute the same rollouts.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Where keys and values are kept.
    pub kv: KvKind,
    /// The most rows of one prompt in a step; none: the whole prompt.
    pub chunk: Option<usize>,
    /// Whether completions of one prompt share it.
    pub prompts: Prompts,
    /// The most sequences at a time.
    pub batch: usize,
    /// Who computes: a processor with its threads and instructions, or a GPU.
    pub device: Device,
}

/// How completions of one prompt get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompts {
    /// Each computes it.
    Own,
    /// One computes it for all whose ids follow each other; the others fork.
    Shared,
}

/// What a setting was found to be.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The setting.
    pub setting: Setting,
    /// Rows of logits that were compared.
    pub rows: u64,
    /// Rows of logits that there are to compare in this setting.
    pub rows_due: u64,
    /// Values that were compared: logits, and two log-probabilities a token.
    pub values: u64,
    /// Values whose bits differ.
    pub differing: u64,
    /// New tokens that differ from the naive rollout's.
    pub tokens_differing: u64,
    /// The first difference.
    pub first: Option<Difference>,
}

/// Where a rollout left the training forward.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The sequence's own number.
    pub id: u64,
    /// The position of the row.
    pub position: usize,
    /// What differs: `logit 17`, `token`, `log-probability`.
    pub what: String,
    /// The bits of the training forward (of a token its id), in hexadecimal.
    pub want: String,
    /// The bits that were found.
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { id, position, what, want, got } = self;
        write!(f, "sequence {id}, position {position}, {what}: want {want}, got {got}")
    }
}

impl Verdict {
    /// Whether every row was compared, and every value and token is the same.
    pub fn holds(&self) -> bool {
        self.differing == 0 && self.tokens_differing == 0 && self.rows == self.rows_due
    }

    fn note(&mut self, (id, position): (u64, usize), what: String, [want, got]: [u32; 2]) {
        let hex = |bits: u32| format!("{bits:08x}");
        let difference = || Difference { id, position, what, want: hex(want), got: hex(got) };
        self.first.get_or_insert_with(difference);
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

/// The settings that are checked: what was asked for first; then every cache, pages smaller and larger
/// than a chunk of keys, prompts whole and in pieces, computed by each and shared, one sequence at a time
/// and all at once; on the processor with one thread and `threads`, and every instruction set of this
/// machine; on a GPU, there alone.
pub fn settings(requests: usize, asked: &Asked, device: &Device) -> Vec<Setting> {
    use Prompts::{Own, Shared};
    let threads = asked.threads;
    let all = requests.max(1);
    let widest = Simd::detect();
    let row = |kv, (chunk, prompts), (batch, threads)| {
        let device = match device {
            Device::Cpu(_) => Device::cpu_with(threads, widest),
            other => other.clone(),
        };
        Setting { kv, chunk, prompts, batch, device }
    };
    let mut rows = vec![
        row(asked.kv, (asked.chunk, Shared), (all, threads)),
        row(KvKind::Off, (None, Own), (all, 1)),
        row(KvKind::Growing, (None, Own), (1, 1)),
        row(KvKind::Growing, (Some(7), Shared), (all, threads)),
        row(KvKind::Contiguous, (None, Shared), (2, threads)),
        row(KvKind::Contiguous, (Some(1), Own), (all, 1)),
        row(KvKind::Paged { page: 1 }, (None, Shared), (all, threads)),
        row(KvKind::Paged { page: 5 }, (Some(3), Shared), (2, 1)),
        row(KvKind::Paged { page: 16 }, (None, Own), (all, threads)),
        row(KvKind::Paged { page: 16 }, (Some(1), Shared), (3, threads + 1)),
        row(KvKind::Paged { page: 100 }, (Some(11), Own), (all, threads)),
    ];
    if let Device::Cpu(_) = device {
        let others = Simd::available().filter(|&s| s != widest && s != Simd::Reference);
        let paged = row(KvKind::Paged { page: 16 }, (None, Shared), (all, 1));
        rows.extend(others.map(|simd| Setting { device: Device::cpu_with(1, simd), ..paged.clone() }));
    }
    rows
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
            _ => model.on(&Device::cpu_with(1, Simd::detect()))?,
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
    asked: &Asked,
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
    let model = model.on(&setting.device)?;
    let options = EngineOptions {
        kv: setting.kv,
        prefill_chunk: setting.chunk,
        max_batch: setting.batch,
        head: HeadRows::All,
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

impl Verdict {
    /// Values of one row, by bits.
    fn compare(&mut self, place: (u64, usize), got: &[f32], want: &[f32], name: impl Fn(usize) -> String) {
        self.values += got.len().max(want.len()) as u64;
        let missing = got.len().abs_diff(want.len()) as u64;
        let pairs = got.iter().zip(want).map(|(got, want)| [want.to_bits(), got.to_bits()]);
        let mut differ = pairs.enumerate().filter(|(_, [want, got])| want != got);
        let first = differ.next();
        self.differing += missing + u64::from(first.is_some()) + differ.count() as u64;
        match first {
            Some((at, bits)) => self.note(place, name(at), bits),
            None if missing > 0 => self.note(place, "values".into(), [want.len() as u32, got.len() as u32]),
            None => (),
        }
    }

    /// Tokens and log-probabilities.
    fn compare_completion(&mut self, got: &Completion, want: &Completion) {
        let place = |at: usize| (got.id, want.prompt_len + at);
        for at in 0..got.tokens.len().max(want.tokens.len()) {
            let pair = [want, got].map(|c| c.tokens.get(at).copied());
            if pair[0] != pair[1] {
                self.tokens_differing += 1;
                self.note(place(at), "token".into(), pair.map(|id| id.unwrap_or(u32::MAX)));
            }
        }
        for (what, got, want) in [
            ("log-probability", &got.logprobs, &want.logprobs),
            ("processed log-probability", &got.processed_logprobs, &want.processed_logprobs),
        ] {
            for at in 0..got.len().max(want.len()) {
                let one = |all: &'_ [f32]| all.get(at..at + 1).unwrap_or(&[]).to_vec();
                self.compare(place(at), &one(got), &one(want), |_| what.to_string());
            }
        }
    }
}

/// Prompts drawn from `seed`, of ragged lengths that fit a model of `positions` with `max_new` more
/// tokens, to be completed by [`requests`].
pub fn prompts(model: &Model, (seed, count): (u64, usize), max_new: usize) -> Vec<Vec<u32>> {
    let cfg = model.config();
    let longest = cfg.max_positions.saturating_sub(max_new).clamp(1, 80) as u64;
    let below = |id: u64, at: u32, n: u64| {
        ((u128::from(uniform_u64(seed, id, at, Purpose::Speculative)) * u128::from(n)) >> 64) as u64
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
