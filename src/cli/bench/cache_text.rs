//! The text of `xtrain bench cache-kinds`, its perplexity, and the slots that sequences take.
use super::bench_model::{self, BenchModel, random_tokens};
use super::cache_columns::Column;
use super::cache_kinds_args::CacheKindsArgs;
use super::workload::Workload;
use crate::cli::input_file::read_text;
use crate::cli::{CliError, Exit, loaded};
use crate::decode::cache::Usage;
use crate::decode::{self, Engine, EngineOptions, LogitsRows, Request};
use crate::model::Model;
use crate::tensor::math::{exp_f64, log_f64};

/// Default prompt length and number of new tokens.
pub(super) const DEFAULT_LEN: usize = 64;

/// Number of windows of the text, and the most tokens of one.
const WINDOWS: usize = 32;
const LONGEST: usize = 256;

/// Number of completions that share a prompt.
const GROUP: usize = 8;

/// Windows of a text, of ragged lengths.
#[derive(Debug)]
pub(super) struct Text {
    windows: Vec<Vec<u32>>,
}

/// What reading the text with one kind of cache gave.
#[derive(Debug)]
pub(super) struct ReadText {
    pub(super) perplexity: f64,
    /// When the cache held all windows.
    pub(super) usage: Usage,
    /// Bytes of the cache then.
    pub(super) bytes: usize,
}

impl ReadText {
    /// Share of the slots in use that hold no position.
    pub(super) fn waste(&self) -> f64 {
        1.0 - self.usage.positions as f64 / self.usage.in_use.max(1) as f64
    }
}

/// Opens the model and its text: that of `--text`, otherwise samples of the model.
pub(super) fn open(args: &CacheKindsArgs) -> Result<(Model, BenchModel, Text), CliError> {
    let context = args.lengths(DEFAULT_LEN).into_iter().fold(0, usize::saturating_add).max(LONGEST + 2);
    let Some(file) = &args.text else {
        let (model, description) = bench_model::open(args.model.as_deref(), &args.shared, context)?;
        let text = Text::sampled(&model)?;
        return Ok((model, description, text));
    };
    let path = args.model.as_deref().expect("clap requires --model with --text");
    let loaded = loaded::open(path, &args.shared.common)?;
    let tokenizer = loaded.require_tokenizer("--text", "remove --text: the model samples a text")?;
    let text = read_text(file)?;
    let lengths = lengths(&loaded.model);
    let (tokens, want) = (tokenizer.encode(&text)?, lengths.iter().sum::<usize>());
    if tokens.len() < want {
        let message = format!("{}: expected at least {want} tokens, found {}", file.display(), tokens.len());
        return Err(CliError::new(Exit::Data, message).hint("use a longer text"));
    }
    let mut rest = &tokens[..];
    let windows = lengths.map(|n| {
        let (window, after) = rest.split_at(n);
        rest = after;
        window.to_vec()
    });
    let description = BenchModel::new(loaded.path.display().to_string(), &loaded.model);
    Ok((loaded.model, description, Text { windows: windows.to_vec() }))
}

/// The lengths of the windows: from the longest to a half of it.
fn lengths(model: &Model) -> [usize; WINDOWS] {
    let longest = LONGEST.min(model.config().max_positions.saturating_sub(2)).max(2);
    std::array::from_fn(|at| (longest - at * longest / (2 * WINDOWS)).max(2))
}

impl Text {
    /// One sample of the model for each window.
    fn sampled(model: &Model) -> Result<Text, CliError> {
        let request = |(at, n): (usize, usize)| {
            let first = random_tokens(0, at as u64, 1, model.config().vocab);
            Request { id: at as u64, ..Request::sampled(&first, n - 1, 1.0, 0) }
        };
        let requests: Vec<Request> = lengths(model).into_iter().enumerate().map(request).collect();
        let done = decode::generate(model, requests.clone(), EngineOptions::default())?;
        let whole =
            requests.iter().zip(done).map(|(request, done)| [&request.prompt[..], &done.tokens].concat());
        Ok(Text { windows: whole.collect() })
    }

    /// Number of tokens whose probability is measured: all but the first of each window.
    pub(super) fn predicted(&self) -> usize {
        self.windows.iter().map(|window| window.len() - 1).sum()
    }

    /// Runs all windows at once, over the cache of `column`.
    pub(super) fn read(
        &self,
        model: &Model,
        column: Column,
        options: EngineOptions,
    ) -> Result<ReadText, CliError> {
        let longest = self.windows.iter().map(Vec::len).max().unwrap_or(0);
        let options = EngineOptions {
            max_batch: WINDOWS,
            max_seq_len: Some(longest + 2),
            kv_capacity: None,
            prefill_chunk: None,
            logits_rows: LogitsRows::All,
            ..options
        };
        let mut engine = Engine::with_memory(model, options, column.memory(model, &options)?)?;
        for (id, window) in (0..).zip(&self.windows) {
            engine.submit(Request { id, ..Request::greedy(window, 2) })?;
        }
        let (mut sum, mut usage, mut bytes) = (0.0, Usage::default(), 0);
        while !engine.is_idle() {
            engine.step_watched(&mut |row| {
                if let Some(&next) = self.windows[row.index].get(row.position + 1) {
                    sum += surprise(row.logits, next);
                }
            })?;
            if let Some(cache) = engine.cache().filter(|cache| cache.usage().positions > usage.positions) {
                (usage, bytes) = (cache.usage(), cache.bytes());
            }
        }
        Ok(ReadText { perplexity: exp_f64(sum / self.predicted() as f64), usage, bytes })
    }
}

/// The negative log-probability of `next`, in f64.
fn surprise(logits: &[f32], next: u32) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&z| exp_f64(f64::from(z) - max)).sum();
    max + log_f64(sum) - f64::from(logits[next as usize])
}

/// The share of KV slots that sampled completions of one prompt save by sharing its pages, at their full length: 1 -
/// slots in use / slots in the pages that each would have alone.
pub(super) fn shared_slots(
    model: &Model,
    workload: Workload,
    options: EngineOptions,
) -> Result<f64, CliError> {
    let options =
        Workload { batch: GROUP, ..workload }.engine(EngineOptions { kv_capacity: None, ..options });
    let mut engine = Engine::new(model, options)?;
    let prompt = random_tokens(0, 0, workload.prompt_len, model.config().vocab);
    engine.submit_group(Request::sampled(&prompt, workload.max_new, 1.0, 0), GROUP)?;
    let (mut in_use, mut alone) = (0, 0);
    while !engine.is_idle() {
        engine.step()?;
        if let Some(cache) = engine.cache() {
            let slots = (0..GROUP as u32).map(|seq| options.kv.slots(cache.seq_len(seq))).sum();
            if slots > alone {
                (in_use, alone) = (cache.usage().in_use, slots);
            }
        }
    }
    Ok(1.0 - in_use as f64 / alone.max(1) as f64)
}
