//! `xtrain rollout`: many completions in one batch.
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::common::{CacheFlags, Common, Sampling, Seed};
use super::interrupt::Interrupt;
use super::loaded::{self, Loaded};
use super::out::Draft;
use super::prompts::{self, Prompt};
use super::{CliError, Exit, out};
use crate::decode::{Completion, Engine, EngineOptions, FinishReason, Request, Stop};
use crate::report::{Progress, units};

/// Flags of `xtrain rollout`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
A line in: {\"prompt\": \"12+34=\"} or {\"prompt_ids\": [49, 50]}. A line out per completion, in the order of
the prompts, with its ids, log-probabilities and finish reason. Prompts are prefilled once and shared by
their G completions; completion s of prompt p has the sample_id p G + s.

Examples:
  xtrain rollout runs/quickstart --prompts prompts.jsonl -n 8 --out completions.jsonl
  echo '{\"prompt\": \"12+34=\"}' | xtrain rollout runs/quickstart -n 4 --max-new 8")]
pub struct RolloutArgs {
    /// A checkpoint's directory, or a run (its newest checkpoint).
    pub model: PathBuf,
    /// JSONL with a prompt a line; `-` is standard input.
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub prompts: PathBuf,
    /// Where completions go; `-` is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub out: PathBuf,
    /// Completions of each prompt.
    #[arg(short = 'n', long = "num-generations", value_name = "G", default_value = "1")]
    pub n: NonZeroUsize,
    /// New tokens of a completion, at most.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub max_new: usize,
    /// Completions under way at a time, at most.
    #[arg(long, value_name = "N", default_value = "64")]
    pub batch: NonZeroUsize,
    /// Goes on after the end-of-text token.
    #[arg(long)]
    pub ignore_eos: bool,
    /// The seed.
    #[command(flatten)]
    pub seed: Seed,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: Sampling,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
    /// How keys and values are kept.
    #[command(flatten)]
    pub cache: CacheFlags,
}

/// A completion as a line of JSON: all that it takes to draw it again.
#[derive(Serialize)]
struct Line<'a> {
    prompt_id: usize,
    group: usize,
    sample: usize,
    sample_id: u64,
    seed: u64,
    prompt: Option<&'a str>,
    completion: Option<String>,
    prompt_ids: &'a [u32],
    completion_ids: &'a [u32],
    logprobs: &'a [f32],
    finish_reason: String,
    truncated: bool,
    temperature: f32,
    top_p: f32,
    top_k: usize,
    min_p: f32,
}

/// Where lines go.
enum Target {
    Stdout,
    File(Draft),
}

/// Completes the prompts.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &RolloutArgs) -> Result<(), CliError> {
    if args.n.get() > 65_536 {
        return Err(CliError::new(Exit::Usage, format_args!("-n {}: expected at most 65536", args.n)));
    }
    let loaded = loaded::open(&args.model, &args.common)?;
    let prompts = prompts::read(&args.prompts, loaded.tokenizer.as_ref())?;
    let requests = requests(args, &loaded, &prompts)?;
    let mut target = match args.out == Path::new("-") {
        true => Target::Stdout,
        false => Target::File(Draft::create(&args.out)?),
    };
    let interrupt = Interrupt::install()?;
    let (cfg, g) = (loaded.model.config(), args.n.get());
    let total = requests.len() * g;
    let options = EngineOptions {
        positions: requests.iter().map(|r| r.positions(cfg)).max(),
        max_batch: args.batch.get().min(total),
        ..args.cache.engine()
    };
    let mut engine = Engine::new(&loaded.model, options)?;
    for request in requests {
        engine.submit_group(request, g)?;
    }
    let mut progress = Progress::new("rollout", "completion", total as u64, 0);
    let (clock, mut tokens, mut done) = (Instant::now(), 0, 0);
    let (mut held, mut next): (BTreeMap<usize, Completion>, usize) = (BTreeMap::new(), 0);
    while !engine.is_idle() {
        if let Some(exit) = interrupt.asked() {
            return Err(CliError::new(exit, format_args!("stopped by a signal after {done} of {total}")));
        }
        tokens += engine.step()?.events.len();
        for completion in engine.take_finished() {
            done += 1;
            held.insert(completion.index, completion);
        }
        while let Some(completion) = held.remove(&next) {
            let prompt = &prompts[next / g];
            target.write(&line(args, &loaded, prompt, &completion))?;
            next += 1;
        }
        let rate = tokens as f64 / clock.elapsed().as_secs_f64();
        progress.at(done, &units::rate(rate, "tok"));
    }
    progress.finish();
    target.finish()
}

/// A request per prompt, each held against the model.
fn requests(args: &RolloutArgs, loaded: &Loaded, prompts: &[Prompt]) -> Result<Vec<Request>, CliError> {
    let one = |(at, prompt): (usize, &Prompt)| {
        let eos = if args.ignore_eos { Vec::new() } else { loaded.eos.clone() };
        let request = Request {
            id: (at as u64).saturating_mul(args.n.get() as u64),
            seed: args.seed.seed.unwrap_or(0),
            prompt: prompt.ids.clone(),
            options: args.sampling.options(),
            max_new: args.max_new,
            stop: Stop { eos, tokens: Vec::new() },
        };
        if args.max_new == 0 {
            return Err(CliError::new(Exit::Usage, "--max-new: want at least 1 new token, got 0"));
        }
        let checked = request.check(loaded.model.config());
        checked.map_err(|e| CliError::of_request(Exit::Data, &prompt.place, &e))?;
        Ok(request)
    };
    prompts.iter().enumerate().map(one).collect()
}

fn line(args: &RolloutArgs, loaded: &Loaded, prompt: &Prompt, done: &Completion) -> Vec<u8> {
    let (tokenizer, g) = (loaded.tokenizer.as_ref(), args.n.get());
    let text = match loaded.eos.iter().find(|&id| done.tokens.last() == Some(id)) {
        Some(_) => &done.tokens[..done.tokens.len() - 1],
        None => &done.tokens[..],
    };
    let decoded = tokenizer.filter(|_| prompt.text.is_none()).map(|t| t.decode(&prompt.ids));
    let line = Line {
        prompt_id: done.index / g,
        group: done.index / g,
        sample: done.index % g,
        sample_id: done.id,
        seed: args.seed.seed.unwrap_or(0),
        prompt: prompt.text.as_deref().or(decoded.as_deref()),
        completion: tokenizer.map(|t| t.decode(text)),
        prompt_ids: &prompt.ids,
        completion_ids: &done.tokens,
        logprobs: &done.logprobs,
        finish_reason: done.finish_reason.to_string(),
        truncated: matches!(done.finish_reason, FinishReason::Length | FinishReason::Context),
        temperature: args.sampling.temperature,
        top_p: args.sampling.top_p,
        top_k: args.sampling.top_k,
        min_p: args.sampling.min_p,
    };
    let mut bytes = serde_json::to_vec(&line).expect("a struct of numbers and strings is JSON");
    bytes.push(b'\n');
    bytes
}

impl Target {
    fn write(&mut self, line: &[u8]) -> Result<(), CliError> {
        match self {
            Target::Stdout => out::print(line),
            Target::File(draft) => draft.write(line),
        }
    }

    fn finish(self) -> Result<(), CliError> {
        match self {
            Target::Stdout => Ok(()),
            Target::File(draft) => draft.finish(),
        }
    }
}
