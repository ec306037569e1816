//! `xtrain rollout`: many completions in one batch.
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::ask::{ENDS, GenerationArgs};
use super::interrupt::Interrupt;
use super::loaded::Loaded;
use super::out::AtomicFile;
use super::prompts::{self, Prompt};
use super::{CliError, out};
use crate::decode::{Completion, Engine, EngineOptions, FinishReason, PrefixCaching, Request};
use crate::report::{Progress, units};

/// Flags of `xtrain rollout`.
#[derive(Debug, Clone, Args)]
#[command(after_help = format!("\
A line in: {{\"prompt\": \"12+34=\"}} or {{\"prompt_ids\": [49, 50]}}. A line out per completion, in the order of \
the prompts, with its ids, log-probabilities and finish reason. Prompts are prefilled once and shared by \
their G completions, and by later prompts as far as these begin with the same tokens (in whole pages); completion s of prompt p has the sample_id p G + s.

{ENDS}

--out appears whole when all is done. Ctrl-C (exit code 130) and SIGTERM (143) keep what is finished: the \
complete lines are in --out, or were printed, each with its prompt_id and sample. The same command again \
draws the same completions.

Examples:
  xtrain rollout runs/quickstart --prompts prompts.jsonl -n 8 --out completions.jsonl
  echo '{{\"prompt\": \"12+34=\"}}' | xtrain rollout runs/quickstart -n 4 --max-new 8"))]
pub struct RolloutArgs {
    /// JSONL with a prompt a line; `-` is standard input.
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub prompts: PathBuf,
    /// Where completions go; `-` is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub out: PathBuf,
    /// Completions of each prompt.
    #[arg(short = 'n', long = "num-generations", value_name = "G", default_value = "1", value_parser = group)]
    pub n: NonZeroUsize,
    /// Completions under way at a time, at most.
    #[arg(long, value_name = "N", default_value = "64")]
    pub batch: NonZeroUsize,
    /// On a GPU, the most steps before the host looks at the tokens; none of it changes a completion.
    #[arg(long, value_name = "STEPS", default_value = "8")]
    pub look: NonZeroUsize,
    /// What is completed, and how.
    #[command(flatten)]
    pub ask: GenerationArgs,
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

/// Completes the prompts.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &RolloutArgs) -> Result<(), CliError> {
    let loaded = args.ask.open()?;
    let prompts = prompts::read(&args.prompts, loaded.tokenizer.as_ref())?;
    let requests = requests(args, &loaded, &prompts)?;
    let mut lines = Lines {
        target: match args.out == Path::new("-") {
            true => Target::Stdout,
            false => Target::File(AtomicFile::create(&args.out)?),
        },
        text: &|done| line(args, &loaded, &prompts[done.index / args.n], done),
        held: BTreeMap::new(),
        written: 0,
    };
    let interrupt = Interrupt::install()?;
    let total = requests.len() * args.n.get();
    let ended = complete(args, &loaded, requests, (&interrupt, &mut lines));
    let kept = lines.finish()?;
    ended.map_err(|error| match kept {
        0 => error,
        _ if args.out == Path::new("-") => error.hint(format_args!("{kept} of {total} were printed")),
        _ => error.hint(format_args!("{kept} of {total} are in {}", args.out.display())),
    })
}

/// Runs the engine until all completions are lines, or a signal comes.
fn complete(
    args: &RolloutArgs,
    loaded: &Loaded,
    requests: Vec<Request>,
    (interrupt, lines): (&Interrupt, &mut Lines<'_>),
) -> Result<(), CliError> {
    let (cfg, g) = (loaded.model.config(), args.n.get());
    let total = requests.len() * g;
    let longest = requests.iter().map(|r| r.required_len(cfg)).max();
    let options = args.ask.engine(longest, args.batch.get().min(total));
    let mut engine = Engine::new(
        &loaded.model,
        EngineOptions { prefix_caching: PrefixCaching::On, steps_per_sync: args.look.get(), ..options },
    )?;
    for request in requests {
        engine.submit_group(request, g)?;
    }
    let mut progress = Progress::new("rollout", "completion", total as u64, 0);
    let (clock, mut tokens, mut done) = (Instant::now(), 0, 0);
    while !engine.is_idle() {
        if let Some(exit) = interrupt.asked() {
            return Err(CliError::new(exit, format_args!("stopped by a signal after {done} of {total}")));
        }
        tokens += engine.step()?.events.len();
        for completion in engine.take_finished() {
            done += 1;
            lines.push(completion)?;
        }
        let rate = tokens as f64 / clock.elapsed().as_secs_f64();
        progress.at(done, &units::rate(rate, "tok"));
    }
    let counters = engine.counters();
    if counters.prefix_cache_hits > 0 {
        let (recalled, ran) = (counters.prefix_cache_hits, counters.prefill_rows);
        progress
            .line(&format!("{recalled} rows of prompts came from earlier ones that begin alike, {ran} ran"));
    }
    progress.finish();
    Ok(())
}

/// A request per prompt, each held against the model.
fn requests(args: &RolloutArgs, loaded: &Loaded, prompts: &[Prompt]) -> Result<Vec<Request>, CliError> {
    let one = |(at, prompt): (usize, &Prompt)| {
        let id = (at as u64).saturating_mul(args.n.get() as u64);
        prompt.checked(args.ask.request(loaded, id, prompt.ids.clone()), loaded.model.config())
    };
    prompts.iter().enumerate().map(one).collect()
}

/// Where lines go.
enum Target {
    Stdout,
    File(AtomicFile),
}

/// The lines of completions, in the order of the prompts.
struct Lines<'a> {
    target: Target,
    /// The line of a completion.
    text: &'a dyn Fn(&Completion) -> Vec<u8>,
    /// Completions whose turn has not come.
    held: BTreeMap<usize, Completion>,
    written: usize,
}

impl Lines<'_> {
    /// Writes the completion, and those that waited for it, when its turn has come.
    fn push(&mut self, done: Completion) -> Result<(), CliError> {
        self.held.insert(done.index, done);
        while let Some(next) = self.held.remove(&self.written) {
            self.write(&next)?;
        }
        Ok(())
    }

    fn write(&mut self, done: &Completion) -> Result<(), CliError> {
        let line = (self.text)(done);
        match &mut self.target {
            Target::Stdout => out::print(line)?,
            Target::File(draft) => draft.write(&line)?,
        }
        self.written += 1;
        Ok(())
    }

    /// Writes those that still wait for an earlier one, which will not come, and puts the file at its
    /// place unless it would be empty; how many lines there are.
    fn finish(mut self) -> Result<usize, CliError> {
        for done in std::mem::take(&mut self.held).into_values() {
            self.write(&done)?;
        }
        match self.target {
            Target::File(draft) if self.written > 0 => draft.finish()?,
            Target::File(_) | Target::Stdout => (),
        }
        Ok(self.written)
    }
}

fn line(args: &RolloutArgs, loaded: &Loaded, prompt: &Prompt, done: &Completion) -> Vec<u8> {
    let (tokenizer, g) = (loaded.tokenizer.as_ref(), args.n.get());
    let decoded = tokenizer.filter(|_| prompt.text.is_none()).map(|t| t.decode(&prompt.ids));
    let line = Line {
        prompt_id: done.index / g,
        group: done.index / g,
        sample: done.index % g,
        sample_id: done.id,
        seed: args.ask.seed,
        prompt: prompt.text.as_deref().or(decoded.as_deref()),
        completion: tokenizer.map(|t| done.text(t)),
        prompt_ids: &prompt.ids,
        completion_ids: &done.tokens,
        logprobs: &done.logprobs,
        finish_reason: done.finish_reason.to_string(),
        truncated: matches!(done.finish_reason, FinishReason::Length | FinishReason::Context),
        temperature: args.ask.sampling.temperature,
        top_p: args.ask.sampling.top_p,
        top_k: args.ask.sampling.top_k,
        min_p: args.ask.sampling.min_p,
    };
    let mut bytes = serde_json::to_vec(&line).expect("a struct of numbers and strings is JSON");
    bytes.push(b'\n');
    bytes
}

fn group(text: &str) -> Result<NonZeroUsize, String> {
    let g = text.parse().ok().filter(|g: &NonZeroUsize| g.get() <= 65_536);
    g.ok_or_else(|| "expected a number from 1 to 65536".to_string())
}
