//! `xtrain replay`: regenerates logged completions and compares them bit for bit.
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::Args;

use super::cache_flags::CacheFlags;
use super::common::Common;
use super::constraint::Compiler;
use super::exit::{CliError, Exit, shell_word};
use super::input_file::read_text;
use super::loaded::{self, Loaded};
use super::memory_check::require_cache_of;
use super::out;
use crate::decode::{Completion, Engine, EngineOptions, Request, TextStops};
use crate::model::checkpoint::step_path;
use crate::model::{Model, json};
use crate::report::Progress;
use crate::rollout_file::{RolloutLine, TopTokens, lossy, policy_digest, policy_digest_of, top_pairs};
use crate::tensor::Dtype;
use crate::tensor::faults::{self, Fault};

/// Completions per engine.
const BATCH: usize = 256;

/// Flags of `xtrain replay`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Regenerates every completion of a file of `xtrain rollout` or of RUN/rollouts/, and compares tokens, log-probabilities \
and finish reasons, bit for bit. Tokens that a reward program appended are inputs. Exits with code 1 if a completion \
differs.

A file of `xtrain rollout` does not name its model: --model is required.

The rollouts of a step were sampled by the weights before it. For RUN/rollouts/step_000051.jsonl the default model is \
the checkpoint RUN/checkpoints/step_000050, if the run has kept it: grpo.save_every and grpo.keep. For step 1, --model \
names the initial model: RUN/base, or that of --init.

Examples:
  xtrain replay completions.jsonl --model runs/quickstart
  xtrain replay runs/grpo/rollouts/step_000001.jsonl --model runs/grpo/base
  xtrain replay runs/grpo/rollouts/step_000751.jsonl")]
pub(super) struct ReplayArgs {
    /// File of completions.
    file: PathBuf,
    /// Model that generated them: a run (newest checkpoint), a checkpoint, a Hugging Face directory or a GGUF file
    /// [default: the checkpoint of the step before, for a file of RUN/rollouts/].
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Device.
    #[command(flatten)]
    common: Common,
    /// KV cache.
    #[command(flatten)]
    cache: CacheFlags,
}

/// Replays the file.
///
/// # Errors
/// See [`super::Exit`]: [`Exit::Difference`] if a completion differs, [`Exit::Data`] if the model is not the one that
/// generated the file.
pub(super) fn run(args: &ReplayArgs) -> Result<(), CliError> {
    let lines = read(&args.file)?;
    let path = match &args.model {
        Some(model) => model.clone(),
        None => checkpoint_before(&args.file, &lines)?,
    };
    let loaded = loaded::open_with_master_weights(&path, &args.common)?;
    let digest = policy_digest(&loaded.model)?;
    let file = args.file.display();
    let kind = args.cache.engine().kv;
    let (kv, limits) = (lossy(kind), kind.limits(loaded.model.config()));
    for Numbered { number, line } in &lines {
        if line.kv != kv {
            let [want, found] = [&line.kv, &kv].map(|kv| kv.as_deref().unwrap_or("an exact cache"));
            let message = format!("{file}:{number}: expected {want}, found {found}");
            let hint = "--kv int8 regenerates completions of an int8 cache, --kv sinks --kv-sinks S --kv-window W those \
                        of sinks:S+W, --kv paged the others";
            return Err(CliError::new(Exit::Data, message).hint(hint));
        }
        if let Some(dtype) = other_dtype(line, &loaded.model, &digest)? {
            let message = format!("{file}:{number}: expected {dtype}, found {}", loaded.model.compute());
            return Err(CliError::new(Exit::Data, message).hint(format!("use --dtype {dtype}")));
        }
        if line.policy.as_deref().is_some_and(|policy| policy != digest) {
            let policy = line.policy.as_deref().unwrap_or_default();
            let message = format!("{file}:{number}: expected the weights {policy}, found {digest}");
            let hint = format!("{} did not generate this file; --model names another one", path.display());
            return Err(CliError::new(Exit::Data, message).hint(hint));
        }
    }
    let mut compiler = Compiler::new(&loaded);
    let mut progress = Progress::new("replay", "completion", lines.len() as u64, 0);
    let (mut done, mut tokens, mut first, mut differing) = (0, 0, None, 0);
    for batch in lines.chunks(BATCH) {
        let turns = turns(batch, &args.file)?;
        let request = |(numbered, turn): &(&Numbered, Range<usize>)| {
            let request = numbered.line.request(turn.start, &loaded.eos);
            let place = format!("{file}:{}", numbered.number);
            let sampling = request.options.check();
            sampling.map_err(|error| CliError::new(Exit::Data, format_args!("{place}: {error}")))?;
            let checked = request.check(&limits);
            checked.map_err(|error| CliError::of_request(Exit::Data, &place, &error))?;
            let language = numbered.line.language();
            let constraint = language.map(|language| compiler.constraint(&language, &place)).transpose()?;
            Ok(Request { constraint, ..request })
        };
        let requests = turns.iter().map(request).collect::<Result<Vec<Request>, CliError>>()?;
        let options = EngineOptions { max_batch: BATCH, ..args.cache.engine() };
        require_cache_of(&loaded.model, &requests, options)?;
        let stops = text_stops(&loaded, &turns)?;
        let found = regenerate(&loaded, requests, stops, options)?;
        let mut found = turns.iter().zip(&found).peekable();
        for numbered in batch {
            let Numbered { number, line } = numbered;
            let is_part = |((of, _), _): &(&(&Numbered, _), _)| std::ptr::eq(*of, numbered);
            let mut turns = std::iter::from_fn(|| found.next_if(is_part));
            tokens += line.completion_ids.len();
            let difference = turns.by_ref().find_map(|((_, turn), found)| difference(line, turn, found));
            if !faults::on(Fault::ReplayKeepsTurns) {
                turns.for_each(drop);
            }
            if let Some(difference) = difference {
                differing += 1;
                first.get_or_insert_with(|| format!("{file}:{number}: {difference}"));
            }
        }
        done += batch.len();
        progress.at(done as u64, &format!("{differing} differ"));
    }
    progress.finish();
    let same = lines.len() - differing;
    let summary =
        format!("{same} of {} completions regenerated, {tokens} tokens, {differing} differ.\n", lines.len());
    let verdict = first.map_or(Ok(()), |first| Err(CliError::new(Exit::Difference, first)));
    out::print_verdict(summary, verdict)
}

/// The compute dtype of a line if it is not that of `model`: as recorded, or as the digest of its weights tells.
/// `digest`: that of the model.
fn other_dtype(line: &RolloutLine<'_>, model: &Model, digest: &str) -> Result<Option<Dtype>, CliError> {
    let other = if model.compute() == Dtype::F32 { Dtype::BF16 } else { Dtype::F32 };
    let is_of_line = match line.policy.as_deref() {
        Some(policy) => policy != digest && policy == policy_digest_of(model, other)?,
        None => line.dtype.as_deref().is_some_and(|dtype| dtype == other.to_string()),
    };
    Ok((is_of_line && !faults::on(Fault::DtypeOfRolloutIgnored)).then_some(other))
}

/// The stop texts of each turn. `None`: no turn has one.
fn text_stops<'t>(
    loaded: &'t Loaded,
    turns: &[(&Numbered, Range<usize>)],
) -> Result<Option<TextStops<'t>>, CliError> {
    if turns.iter().all(|(numbered, _)| numbered.line.stop.is_empty()) {
        return Ok(None);
    }
    let hint = "the stop texts of the file can only be found with the tokenizer of its model";
    let tokenizer = loaded.require_tokenizer("a completion with \"stop\"", hint)?;
    let mut stops = TextStops::new(tokenizer, Vec::new());
    for (index, (numbered, _)) in turns.iter().enumerate() {
        stops.set_stops(index..index + 1, numbered.line.stop.to_vec());
    }
    Ok(Some(stops))
}

/// The completions of `requests`, in their order.
fn regenerate(
    loaded: &Loaded,
    requests: Vec<Request>,
    mut stops: Option<TextStops<'_>>,
    options: EngineOptions,
) -> Result<Vec<Completion>, CliError> {
    let limits = options.kv.limits(loaded.model.config());
    let max_seq_len = requests.iter().map(|request| request.required_len(&limits)).max();
    let max_batch = options.max_batch.min(requests.len().max(1));
    let mut engine = Engine::new(&loaded.model, EngineOptions { max_seq_len, max_batch, ..options })?;
    requests.into_iter().try_for_each(|request| engine.submit(request).map(drop))?;
    while !engine.is_idle() {
        engine.step()?;
        if let Some(stops) = &mut stops {
            engine.stop_at(stops);
        }
    }
    let mut all = engine.take_finished();
    all.sort_by_key(|completion| completion.index);
    if let Some(stops) = &mut stops {
        all.iter_mut().for_each(|completion| drop(stops.finish(completion)));
    }
    Ok(all)
}

/// The turns of all lines of a batch, with their lines.
fn turns<'a>(batch: &'a [Numbered], file: &Path) -> Result<Vec<(&'a Numbered, Range<usize>)>, CliError> {
    let mut all = Vec::with_capacity(batch.len());
    for numbered in batch {
        let turns = numbered.line.turns().map_err(|error| {
            let message = format!("{}:{}: {error}", file.display(), numbered.number);
            CliError::new(Exit::Data, message)
        })?;
        all.extend(turns.into_iter().map(|turn| (numbered, turn)));
    }
    Ok(all)
}

/// What differs between a turn of a line and the regenerated turn.
fn difference(line: &RolloutLine<'_>, turn: &Range<usize>, found: &Completion) -> Option<String> {
    let (first, tokens) = (turn.start, &line.completion_ids[turn.clone()]);
    if *tokens != found.tokens {
        let at = tokens.iter().zip(&found.tokens).position(|(a, b)| a != b);
        let at = at.unwrap_or_else(|| tokens.len().min(found.tokens.len()));
        let name = |tokens: &[u32]| tokens.get(at).map_or("the end".to_string(), u32::to_string);
        let (want, found) = (name(tokens), name(&found.tokens));
        return Some(format!("token {}: expected {want}, found {found}", first + at));
    }
    // at temperature 0, the processed ones are 0
    let raw = line.logprobs.as_ref().filter(|_| !faults::on(Fault::ReplayIgnoresLogprobs));
    let given = [(Some(&line.processed_logprobs), &found.processed_logprobs), (raw, &found.logprobs)];
    for (want, logprobs) in given.into_iter().filter_map(|(want, found)| Some((want?, found))) {
        if line.completion_ids.len() != want.len() {
            let (n, found) = (line.completion_ids.len(), want.len());
            return Some(format!("expected {n} log-probabilities, found {found}"));
        }
        let want = &want[turn.clone()];
        if let Some(at) = want.iter().zip(logprobs).position(|(a, b)| a.to_bits() != b.to_bits()) {
            let (token, want, found) = (first + at, want[at], logprobs[at]);
            return Some(format!("token {token}: expected the log-probability {want}, found {found}"));
        }
    }
    if let Some(want) = &line.top_logprobs {
        if line.completion_ids.len() != want.len() {
            let (n, found) = (line.completion_ids.len(), want.len());
            return Some(format!("top_logprobs: expected {n} lists, one for each token, found {found}"));
        }
        let (want, found) = (&want[turn.clone()], top_pairs(found).unwrap_or_default());
        let differs = |(want, found): (&TopTokens, &TopTokens)| {
            let bits = |&(token, logprob): &(u32, f32)| (token, logprob.to_bits());
            !want.iter().map(bits).eq(found.iter().map(bits)) && !faults::on(Fault::ReplayIgnoresTopTokens)
        };
        if let Some(at) = want.iter().zip(&found).position(differs) {
            let token = first + at;
            let [want, found] = [&want[at], &found[at]].map(|top| serde_json::json!(top));
            return Some(format!("token {token}: expected the most probable tokens {want}, found {found}"));
        }
    }
    let found = found.finish_reason;
    (turn.end == line.completion_ids.len() && line.finish_reason != found)
        .then(|| format!("finish reason: expected {}, found {found}", line.finish_reason))
}

/// A line and its number, from 1.
struct Numbered {
    number: usize,
    line: RolloutLine<'static>,
}

/// The lines of the file. Blank lines are skipped.
fn read(path: &Path) -> Result<Vec<Numbered>, CliError> {
    let text = read_text(path).map_err(|error| match first_rollouts(path) {
        Some(file) => {
            error.hint(format_args!("name a file of completions, for example {}", shell_word(&file)))
        }
        None => error,
    })?;
    let line = |(at, line): (usize, &str)| {
        let number = at + 1;
        let line = serde_json::from_str(line).map_err(|error: serde_json::Error| {
            let (path, got) = (path.display(), json::found_at_column(&error));
            CliError::new(Exit::Data, format_args!("{path}:{number}: expected a completion, found {got}"))
        })?;
        Ok(Numbered { number, line })
    };
    let lines: Vec<Numbered> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(line)
        .collect::<Result<_, CliError>>()?;
    match lines.is_empty() {
        true => Err(CliError::new(Exit::Data, format_args!("{}: no completions found", path.display()))),
        false => Ok(lines),
    }
}

/// The first file of completions of a run. `None`: `path` is no run, or has none.
fn first_rollouts(path: &Path) -> Option<PathBuf> {
    let files = path.join("rollouts").read_dir().ok()?.flatten().map(|entry| entry.path());
    files.filter(|file| file.extension().is_some_and(|extension| extension == "jsonl")).min()
}

/// The checkpoint of the step before the one that the file belongs to.
fn checkpoint_before(file: &Path, lines: &[Numbered]) -> Result<PathBuf, CliError> {
    // the path of a file in the working directory does not name its run
    let whole = match file.components().count() {
        ..3 => &file.canonicalize().map_err(|error| CliError::io(file, &error))?,
        _ => file,
    };
    let run = whole.parent().and_then(Path::parent);
    let before = lines[0].line.step.and_then(|step| step.checked_sub(1));
    let (Some(run), Some(before)) = (run, before) else {
        return Err(CliError::new(Exit::Usage, "the file does not name its model")
            .hint("--model names the model that generated it"));
    };
    let path = step_path(run, before);
    match path.is_dir() {
        true => Ok(path),
        false => {
            let error =
                CliError::new(Exit::Missing, format_args!("{}: checkpoint not found", path.display()));
            Err(error.hint(match (before, run.join("base")) {
                (0, base) if base.is_dir() => {
                    format!("the initial model generated them: --model {}", shell_word(&base))
                }
                (0, _) => "the initial model generated them: --model names it (train.init)".into(),
                _ => "rollouts can be replayed if the checkpoint of the step before them was kept: \
                      grpo.save_every, grpo.keep"
                    .into(),
            }))
        }
    }
}
