//! Checks that the logits of a rollout are bitwise equal to those of the training forward pass.
mod setting;
mod verdict;

pub use setting::{CacheRoom, Prompts, RequestedSetting, Setting, settings};
pub use verdict::{Difference, Verdict};

use std::ops::Range;

use rand::RngExt as _;
use sha2::{Digest as _, Sha256};

use crate::decode::{
    self, Completion, Engine, EngineOptions, KvKind, LogitRow, LogitsRows, Request, generate_naive,
};
use crate::model::comm::{self, Communicator, SingleProcess};
use crate::model::{self, Config, Model, NoCache, Rows, Tape};
use crate::tensor::faults::{self, Fault};
use crate::tensor::rng::{PhiloxRng, Purpose};
use crate::tensor::{Device, Dtype, Simd};

/// Additional completions of the first prompt.
const FORKS: usize = 3;

/// Why a verification failed to run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rollout failed.
    #[error(transparent)]
    Decode(#[from] decode::Error),
    /// The training forward pass failed.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// Another process has ended.
    #[error(transparent)]
    Communication(#[from] comm::Error),
    /// The training forward pass of a process has other bits than that of process 0.
    #[error(
        "process {rank} differs from process 0 in the logits or tokens of sequence {id} in the training forward pass"
    )]
    ProcessesDiffer {
        /// The process.
        rank: usize,
        /// The sequence.
        id: u64,
    },
}

/// The expected results: the naive rollout of every request, and the logits of the training forward pass for its
/// whole sequence, computed with a tape on one thread. In f32 they are computed on the CPU, also for a GPU; in bf16 a
/// GPU is compared with itself (docs/numerics.md, tier 3).
struct Expected {
    completions: Vec<Completion>,
    logits: Vec<Vec<f32>>,
}

impl Expected {
    fn new(model: &Model, requests: &[Request]) -> Result<Expected, Error> {
        let model = match (model.device(), model.compute()) {
            (Device::Gpu(_), Dtype::BF16) => model.clone(),
            _ => model.to_device(&Device::cpu_with(1, Simd::detect()))?,
        };
        let mut expected = Expected { completions: Vec::new(), logits: Vec::new() };
        for request in requests {
            let completion = generate_naive(&model, request)?;
            let whole = [&request.prompt[..], &completion.tokens].concat();
            let rows = Rows::whole(&[whole]);
            let mut tape = Tape::new(rows.samples());
            let hidden = model.forward(&mut tape, &mut NoCache::new(&rows)?, &rows)?;
            let logits = model.logits(&hidden.value)?;
            expected.logits.push(logits.to_vec::<f32>().map_err(model::Error::from)?);
            expected.completions.push(completion);
        }
        Ok(expected)
    }

    /// Compares the expected results of all processes.
    fn require_equal(&self, requests: &[Request], comm: &dyn Communicator) -> Result<(), Error> {
        if comm.size() == 1 {
            return Ok(());
        }
        let mut message = Vec::new();
        for (completion, logits) in self.completions.iter().zip(&self.logits) {
            let mut hash = Sha256::new();
            completion.tokens.iter().for_each(|id| hash.update(id.to_le_bytes()));
            logits.iter().for_each(|logit| hash.update(logit.to_le_bytes()));
            message.extend(hash.finalize());
        }
        let all = comm.all_gather(&message)?;
        for (rank, found) in all.iter().enumerate() {
            let digests = |message: &Vec<u8>| message.as_chunks::<32>().0.to_vec();
            let differs =
                digests(found).iter().zip(digests(&all[0])).position(|(found, want)| *found != want);
            if let Some(at) = differs.filter(|_| !faults::on(Fault::LogitsOfProcessesNotCompared)) {
                return Err(Error::ProcessesDiffer { rank, id: requests[at].id });
            }
        }
        Ok(())
    }

    /// Number of logits rows that the engine computes for `groups` of requests. With a cache: the prompt of each
    /// group once, and for each sequence its new tokens minus one. Without a cache: the whole prefix for every new
    /// token.
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

/// Groups the requests that share a prompt: consecutive requests that differ only in their consecutive ids.
fn groups(requests: &[Request], prompts: Prompts) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (at, request) in requests.iter().enumerate() {
        let continues = |group: &Range<usize>| {
            let first = &requests[group.start];
            prompts == Prompts::Shared
                && first.id.checked_add(group.len() as u64) == Some(request.id)
                && Request { id: first.id, ..request.clone() } == *first
        };
        match groups.last_mut().filter(|group| continues(group)) {
            Some(group) => group.end += 1,
            None => groups.push(at..at + 1),
        }
    }
    groups
}

/// Runs `requests` in every setting. Compares each row of logits with the training forward pass, and each token and
/// log-probability with the naive rollout. Calls `on_verdict` after each setting.
///
/// # Errors
/// The model cannot serve a request.
pub fn verify(
    model: &Model,
    requests: &[Request],
    requested: &RequestedSetting,
    on_verdict: &mut dyn FnMut(&Verdict),
) -> Result<Vec<Verdict>, Error> {
    verify_part(model, requests, requested, &SingleProcess, on_verdict)
}

/// [`verify`] on several processes with one model: process r of R verifies the settings r, r + R, r + 2 R, ... of its
/// machine. All of them compute the expected logits and tokens, and compare their bits.
///
/// # Errors
/// As [`verify`]; [`Error::ProcessesDiffer`] in all processes; a process has ended.
pub fn verify_part(
    model: &Model,
    requests: &[Request],
    requested: &RequestedSetting,
    comm: &dyn Communicator,
    on_verdict: &mut dyn FnMut(&Verdict),
) -> Result<Vec<Verdict>, Error> {
    let expected = Expected::new(model, requests)?;
    expected.require_equal(requests, comm)?;
    let mut verdicts = Vec::new();
    let all = settings(requests.len(), requested, model.device());
    for setting in all.into_iter().skip(comm.rank()).step_by(comm.size()) {
        let verdict = check(model, requests, &expected, setting)?;
        on_verdict(&verdict);
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

fn check(
    model: &Model,
    requests: &[Request],
    expected: &Expected,
    setting: Setting,
) -> Result<Verdict, Error> {
    // The commands run models that were opened for inference.
    let model = model.to_device(&setting.device)?.for_inference()?;
    let options = engine_options(model.config(), requests, &setting);
    let mut engine = Engine::new(&model, options)?;
    let groups = groups(requests, setting.prompts);
    for group in &groups {
        // The submission order is the order of the requests, so an index of the engine is an index of `requests`.
        engine.submit_group(requests[group.start].clone(), group.len())?;
    }
    let has_logits = options.logits_rows == LogitsRows::All;
    let rows_expected = if has_logits { expected.rows(&groups, setting.kv) } else { 0 };
    let (v, is_cached) = (model.config().vocab, setting.kv != KvKind::Off);
    let mut verdict = Verdict::new(setting, rows_expected);
    // one past the last position of each sequence that was computed
    let mut computed = vec![0; requests.len()];
    while !engine.is_idle() {
        let mut watch = |row: LogitRow<'_>| {
            let want =
                expected.logits[row.index].get(row.position * v..(row.position + 1) * v).unwrap_or(&[]);
            verdict.rows += 1;
            verdict.rows_recomputed += u64::from(is_cached && row.position < computed[row.index]);
            computed[row.index] = computed[row.index].max(row.position + 1);
            verdict.compare(row.id, row.position, row.logits, want, |at| format!("logit {at}"));
        };
        let step = if has_logits { engine.step_watched(&mut watch)? } else { engine.step()? };
        verdict.passes_ahead += step.passes.saturating_sub(1) as u64;
    }
    verdict.preemptions = engine.counters().preemptions;
    verdict.drafted = engine.counters().drafted;
    for got in engine.take_finished() {
        verdict.compare_completion(&got, &expected.completions[got.index]);
    }
    Ok(verdict)
}

/// The options of the engine of a setting.
fn engine_options(cfg: &Config, requests: &[Request], setting: &Setting) -> EngineOptions {
    let page = setting.kv.page().unwrap_or(1);
    let longest = requests.iter().map(|r| r.required_len(cfg)).max().unwrap_or(1);
    EngineOptions {
        kv: setting.kv,
        // sequences are preempted
        watermark: Some(0),
        kv_capacity: match setting.room {
            CacheRoom::AllSequences => None,
            CacheRoom::OneSequence => Some(longest.next_multiple_of(page) + page),
        },
        prefill_chunk: setting.chunk,
        max_batch: setting.batch,
        steps_per_sync: setting.steps_per_sync,
        logits_rows: if setting.has_logits() { LogitsRows::All } else { LogitsRows::Sampled },
        speculation: setting.speculation,
        ..EngineOptions::default()
    }
}

/// `count` random prompts of different lengths, at most 80 tokens, that leave room for `max_new` tokens in the
/// model's context.
pub fn prompts(model: &Model, seed: u64, count: usize, max_new: usize) -> Vec<Vec<u32>> {
    let cfg = model.config();
    let longest = cfg.max_positions.saturating_sub(max_new).clamp(1, 80);
    let prompt = |id: u64| {
        let mut rng = PhiloxRng::new(seed, id, Purpose::Prompts);
        (0..rng.random_range(1..=longest)).map(|_| rng.random_range(0..cfg.vocab as u32)).collect()
    };
    (0..count as u64).map(prompt).collect()
}

/// One request for each prompt, and three more for the first prompt, which can share it. Every second prompt is
/// completed greedily.
pub fn requests(prompts: &[Vec<u32>], max_new: usize, seed: u64) -> Vec<Request> {
    let indices = [0; FORKS].into_iter().chain(0..prompts.len());
    let request = |(id, at): (usize, usize)| {
        let temperature = if at % 2 == 0 { 1.0 } else { 0.0 };
        Request { id: id as u64, ..Request::sampled(&prompts[at], max_new, temperature, seed) }
    };
    indices.enumerate().map(request).collect()
}
