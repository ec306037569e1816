//! `xtrain rollout`: batched completions of many prompts.
use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

use super::common::{Force, count, number};
use super::completion_writer::{Completed, CompletionWriter, Kept, Output};
use super::constraint::Compiler;
use super::exit::Exit;
use super::generation_args::{FINISH_REASONS, GenerationArgs};
use super::identity::Identity;
use super::interrupt::Interrupt;
use super::kept_completions::{KeptCompletions, Lines};
use super::loaded::{self, Loaded};
use super::memory_check::{Models, require_cache_in};
use super::prompts::{self, Prompt, TruncatedSide};
use super::scheduler_flags::SchedulerFlags;
use super::{CliError, output_path};
use crate::decode::{Engine, EngineOptions, FinishReason, PrefixCaching, Request, TextStops};
use crate::grammar::Language;
use crate::model::comm::Communicator;
use crate::model::shard_samples;
use crate::report::{Progress, units};
use crate::rollout_file::{RolloutLine, lossy, policy_digest};
use crate::tensor::Dtype;
use crate::tensor::faults::{self, Fault};

#[derive(Debug, Clone, Args)]
#[command(after_help = format!("\
Input: one JSON object per line with one of {{\"prompt\": \"12+34=\"}}, {{\"messages\": [...]}} (a conversation, rendered with \
the chat template of the model) and {{\"prompt_ids\": [49, 50]}}. Output: one JSON object \
per completion, in prompt order, with token ids, log-probabilities and finish reason, and with the other fields of the \
prompt's line. A line may have a \"regex\" or a \"json_schema\" of its own, and a \"priority\": a whole number; prompts of \
a higher one run first. Each prompt is prefilled once \
for its G completions, and prompts with a common prefix share its cached pages. Completion s of prompt p has \
sample_id p * G + s.

A prompt that does not fit the context is skipped with a warning, unless it is truncated; the exit code is then 65.

{FINISH_REASONS}

--out appears when all completions are finished. Ctrl-C (exit code 130), SIGTERM (143), a sequence that fails and a \
full disk keep the finished completions that could be written: they are in OUT.partial or were printed, each with its \
prompt_id and sample. Several processes keep nothing. The same command with --resume generates the others; an existing \
OUT.partial is replaced with --force only.

Examples:
  xtrain rollout runs/quickstart --prompts prompts.jsonl -n 8 --out completions.jsonl
  xtrain rollout runs/quickstart --prompts prompts.jsonl --stop '!' --stop '?' --out ended.jsonl
  xtrain rollout runs/quickstart --prompts prompts.jsonl --regex '[0-9]{{1,3}}' --out numbers.jsonl
  echo '{{\"prompt\": \"12+34=\"}}' | xtrain rollout runs/quickstart -n 4 --max-new 8"))]
pub(super) struct RolloutArgs {
    /// JSONL file with one prompt per line; - is standard input.
    #[arg(long, value_name = "FILE", default_value = "-")]
    prompts: PathBuf,
    /// JSONL file for the completions; - is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
    /// Number of completions per prompt.
    #[arg(short = 'n', long = "num-generations", value_name = "G", default_value = "1", value_parser = group_size)]
    n: NonZeroUsize,
    /// Maximum number of sequences that run concurrently.
    #[arg(long, alias = "batch", value_name = "N", default_value = "64", value_parser = count)]
    pub(super) max_batch_size: NonZeroUsize,
    /// GPU: decode steps between two synchronizations with the host. The completions do not depend on it.
    #[arg(long, alias = "look", value_name = "STEPS", default_value = "8", value_parser = count)]
    pub(super) sync_every: NonZeroUsize,
    /// Continue an interrupted rollout of the same model, prompts and flags: keep the prompts of OUT.partial that have
    /// all their completions, and generate the others. Those of the first kept prompt are generated again and compared.
    #[arg(long)]
    resume: bool,
    /// Truncate prompts that do not fit the context, instead of skipping them.
    #[arg(long, value_name = "SIDE")]
    truncate_prompt: Option<TruncatedSide>,
    /// Write the digest of the weights into each line, so that `xtrain replay` refuses other weights. Keeps the f32
    /// master weights in memory.
    #[arg(long)]
    policy_digest: bool,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    pub(super) generation: GenerationArgs,
    #[command(flatten)]
    scheduler: SchedulerFlags,
}

pub(super) fn run(args: &RolloutArgs, comm: &dyn Communicator) -> Result<(), CliError> {
    prompts::require_readable(&args.prompts, comm)?;
    let path = (args.out != Path::new("-")).then_some(&args.out);
    if let Some(path) = path {
        output_path::check_absent(path, args.force)?;
        if !args.resume {
            output_path::check_partial_absent(path, args.force)?;
        }
    }
    if args.resume {
        require_resumable(path.map(PathBuf::as_path), comm)?;
    }
    let open = match args.policy_digest {
        true => loaded::open_with_master_weights,
        false => args.generation.prefix.opener(None),
    };
    let loaded = open(args.generation.model.path(), &args.generation.common)?;
    let policy = args.policy_digest.then(|| policy_digest(&loaded.model)).transpose()?;
    let mut prompts = prompts::read(&args.prompts, loaded.tokenizer.as_ref())?;
    let count = prompts.len();
    prompts::check_columns(&prompts)?;
    let context = args.generation.cache.engine().kv.max_positions(loaded.model.config());
    prompts::fit(&mut prompts, (args.generation.max_new, context), args.truncate_prompt, &loaded)?;
    let skipped = count - prompts.len();
    let identity = Identity::of_command().and("the model", loaded.checkpoint.display());
    let language = args.generation.constraint.language()?;
    identity.and("the prompts", digest(&prompts, language.as_ref())).require_equal(comm)?;
    let own = shard_samples(prompts.len(), comm.size(), comm.rank());
    let (first, prompts) = (own.start, &mut prompts[own]);
    let requests = requests(args, &loaded, prompts)?;
    let stops = args.generation.text_stops(&loaded)?;
    let first = if faults::on(Fault::PromptsNumberedByProcess) { 0 } else { first };
    let format = |done: &Completed| {
        let group = done.completion.index / args.n;
        json_line(args, (policy.as_deref(), loaded.model.compute()), (first + group, &prompts[group]), done)
    };
    let ids = requests.iter().map(|of| of.request.id).collect();
    let lines = Lines { format: &format, ids, g: args.n.get() };
    let mut kept = match path.filter(|_| args.resume) {
        Some(path) => KeptCompletions::read(&output_path::partial_of(path), &lines)?,
        None => KeptCompletions::default(),
    };
    let output = Output::open(path.map(PathBuf::as_path), comm)?;
    let mut writer = CompletionWriter::new(output, &format);
    let interrupt = Interrupt::install()?;
    let total = requests.len() * args.n.get();
    let result = match requests.is_empty() && comm.size() > 1 {
        true => Ok(()),
        false => {
            let work = Work { loaded: &loaded, requests, stops, kept: &mut kept };
            complete(args, work, &interrupt, &mut writer)
        }
    };
    let Err(error) = result else {
        writer.finish(comm)?;
        kept.remove()?;
        return check_none_skipped(skipped, count);
    };
    let older = kept.file();
    let Kept { completions: kept, partial } = writer.keep_partial()?;
    Err(match partial {
        _ if kept == 0 => match older {
            Some(path) => error.or_hint(format_args!("{} is unchanged", path.display())),
            None => error,
        },
        Some(path) if output_path::is_written_directly(&path) => {
            error.hint(format_args!("{kept} of {total} completions are in {}", path.display()))
        }
        Some(path) => error.hint(format_args!(
            "{kept} of {total} completions are in {}; --resume generates the others",
            path.display()
        )),
        None => error.hint(format_args!("{kept} of {total} completions were printed")),
    })
}

impl RolloutArgs {
    /// The engine options for `total` sequences of at most `longest` positions.
    ///
    /// # Errors
    /// Flags that exclude each other; a cache without room for the longest sequence.
    pub(super) fn engine(&self, longest: usize, total: usize) -> Result<EngineOptions, CliError> {
        let options = EngineOptions {
            prefix_caching: PrefixCaching::On,
            steps_per_sync: self.sync_every.get(),
            max_seq_len: Some(longest),
            max_batch: self.max_batch_size.get().min(total),
            ..self.scheduler.apply(self.generation.engine()?)
        };
        self.scheduler.fit(options, longest)
    }
}

/// A checksum of all prompts, their constraints and their columns. `language` is that of the flags.
fn digest(prompts: &[Prompt], language: Option<&Language>) -> String {
    let of = |prompt: &Prompt| {
        let values = (&prompt.ids, prompt.language.as_ref().or(language), &prompt.columns);
        serde_json::to_vec(&values).expect("ids and JSON values are JSON")
    };
    let crc = prompts.iter().fold(0, |crc, prompt| crc32c::crc32c_append(crc, &of(prompt)));
    format!("crc32c:{crc:08x}")
}

/// The error of a command that skipped prompts and completed the others.
fn check_none_skipped(skipped: usize, count: usize) -> Result<(), CliError> {
    if skipped == 0 {
        return Ok(());
    }
    let message = format_args!("{skipped} of {count} prompts were skipped; the others are complete");
    Err(CliError::new(Exit::Data, message).hint(prompts::TRUNCATE))
}

/// `--resume` needs a file to continue, and one process.
fn require_resumable(path: Option<&Path>, comm: &dyn Communicator) -> Result<(), CliError> {
    let (want, found) = match (comm.size(), path) {
        (1, Some(path)) if !output_path::is_written_directly(path) => return Ok(()),
        (1, Some(path)) => ("--out with a regular file", path.display().to_string()),
        (1, None) => ("--out FILE", "standard output".to_string()),
        (processes, _) => ("one process", processes.to_string()),
    };
    Err(CliError::new(Exit::Usage, format_args!("--resume: expected {want}, found {found}")))
}

/// A request and its priority among the waiting ones.
struct Prioritized {
    request: Request,
    priority: i32,
    /// Index of the prompt among those that were not skipped.
    group: usize,
}

/// What an engine has to complete.
struct Work<'a> {
    loaded: &'a Loaded,
    requests: Vec<Prioritized>,
    /// The texts of the completions. `None`: the model has no tokenizer.
    stops: Option<TextStops<'a>>,
    /// The completions of an interrupted command. They are written after the comparison of those of the first prompt, so
    /// that the completions of two models are never in one file.
    kept: &'a mut KeptCompletions,
}

/// Runs the engine until all completions are written or a signal arrives.
fn complete(
    args: &RolloutArgs,
    work: Work<'_>,
    interrupt: &Interrupt,
    writer: &mut CompletionWriter<'_>,
) -> Result<(), CliError> {
    let Work { loaded, mut requests, mut stops, kept } = work;
    let (cfg, g) = (&args.generation.cache.engine().kv.limits(loaded.model.config()), args.n.get());
    let total = requests.len() * g;
    requests.retain(|of| kept.is_due(of.group));
    requests.sort_by_key(|of| !kept.is_compared(of.group));
    let groups: Vec<usize> = requests.iter().map(|of| of.group).collect();
    let longest = requests.iter().map(|of| of.request.required_len(cfg)).max();
    let options = args.engine(longest.unwrap_or(0), requests.len() * g)?;
    let draft = args.generation.open_draft(loaded)?;
    let memory = args.scheduler.offload.memory(loaded.model.device())?;
    require_cache_in(
        &memory,
        Models { model: &loaded.model, draft: draft.as_ref().map(|draft| &draft.model) },
        &options,
        "reduce --max-batch-size, --max-new or the length of the prompts",
    )?;
    let mut engine = Engine::with_memory(&loaded.model, options, memory)?;
    draft.as_ref().map_or(Ok(()), |draft| engine.draft_with(&draft.model))?;
    args.scheduler.offload.set_store(&mut engine)?;
    let prefix = args.generation.prefix.load(loaded, &mut engine)?;
    let mut progress = Progress::new("rollout", "completion", total as u64, kept.len() as u64);
    if kept.len() > 0 {
        progress.line(&format!("kept {} of {total} completions", kept.len()));
    }
    if let Some(prefix) = prefix {
        progress.line(&prefix.of_prompts(requests.iter().map(|of| &*of.request.prompt)));
    }
    let compared = requests.iter().take_while(|of| kept.is_compared(of.group)).count();
    let mut others = Some(requests.split_off(compared));
    submit(&mut engine, requests, g)?;
    let (clock, mut tokens, mut done) = (Instant::now(), 0, kept.len() as u64);
    loop {
        if engine.is_idle() {
            let Some(others) = others.take() else { break };
            writer.keep(kept.take())?;
            submit(&mut engine, others, g)?;
            continue;
        }
        if let Some(exit) = interrupt.requested() {
            let message = format_args!("stopped by a signal after {done} of {total} completions");
            return Err(CliError::new(exit, message));
        }
        let stepped = engine.step().map(|step| {
            tokens += step.events.len();
            if let Some(stops) = &mut stops {
                step.events.iter().for_each(|event| drop(stops.push(event)));
            }
        });
        for index in stops.as_mut().map(|stops| stops.reached()).unwrap_or_default() {
            engine.stop(index);
        }
        let lost = stepped.is_err() && faults::on(Fault::CompletionsOfFailedStepLost);
        for mut completion in engine.take_finished().into_iter().filter(|_| !lost) {
            let text = stops.as_mut().map(|stops| stops.finish(&mut completion));
            let (group, sample) = (groups[completion.index / g], completion.index % g);
            if !faults::on(Fault::ResumedIndexNotMapped) {
                completion.index = group * g + sample;
            }
            let completed = Completed { completion, text };
            if kept.is_compared(group) {
                kept.compare((group, sample), &writer.line(&completed))?;
                continue;
            }
            done += 1;
            writer.push(completed)?;
        }
        // after the completions that ended in the same step
        stepped?;
        let rate = tokens as f64 / clock.elapsed().as_secs_f64();
        progress.at(done, &units::rate(rate, "tok"));
    }
    let (cached, computed) = (engine.counters().prefix_cache_hits, engine.counters().prefill_rows);
    if cached > 0 {
        progress.line(&format!("prefix cache: {cached} tokens reused, {computed} prompt tokens computed"));
    }
    if let Some(preemptions) = args.scheduler.offload.report(&engine) {
        progress.line(&preemptions);
    }
    if let Some(speculation) = args.generation.speculation.report(engine.counters()) {
        progress.line(&speculation.text());
    }
    progress.finish();
    args.scheduler.offload.warn(&engine);
    Ok(())
}

/// Submits `g` completions of each request.
fn submit(engine: &mut Engine<'_>, requests: Vec<Prioritized>, g: usize) -> Result<(), CliError> {
    for Prioritized { request, priority, .. } in requests {
        engine.submit_prioritized(request, g, priority)?;
    }
    Ok(())
}

/// One request per prompt with its priority, each checked against the model. The flags constrain the prompts whose line
/// does not.
fn requests(
    args: &RolloutArgs,
    loaded: &Loaded,
    prompts: &mut [Prompt],
) -> Result<Vec<Prioritized>, CliError> {
    let flags = &args.generation.constraint;
    let (language, mut compiler) = (flags.language()?, Compiler::new(loaded));
    let limits = args.generation.cache.engine().kv.limits(loaded.model.config());
    let request = |(group, prompt): (usize, &mut Prompt)| {
        let id = (prompt.index as u64).saturating_mul(args.n.get() as u64);
        let request = args.generation.request(&loaded.eos, id, prompt.ids.clone());
        let place = if prompt.language.is_some() { &prompt.place } else { flags.name() };
        let language = prompt.language.as_ref().or(language.as_ref());
        let constraint = language.map(|language| compiler.constraint(language, place));
        let request = Request { constraint: constraint.transpose()?, ..request };
        prompt.language = language.cloned();
        let request = prompt.checked(request, &limits)?;
        Ok(Prioritized { request, priority: prompt.priority, group })
    };
    prompts.iter_mut().enumerate().map(request).collect()
}

/// The line of a completion. `policy`, `dtype`: the digest of the weights and the compute dtype. `group`, `prompt`: the
/// number of the prompt among those that were not skipped, and the prompt.
fn json_line(
    args: &RolloutArgs,
    (policy, dtype): (Option<&str>, Dtype),
    (group, prompt): (usize, &Prompt),
    done: &Completed,
) -> Vec<u8> {
    let Completed { completion: done, text } = done;
    let (sampling, g) = (&args.generation.sampling, args.n.get());
    let (regex, json_schema) = prompt.language.as_ref().map_or((None, None), Language::fields);
    RolloutLine {
        step: None,
        prompt_id: prompt.index as u64,
        group,
        sample: done.index % g,
        sample_id: done.id,
        seed: args.generation.seed,
        policy: policy.map(Cow::Borrowed),
        prompt: prompt.text.as_deref().map(Cow::Borrowed),
        completion: text.as_deref().map(Cow::Borrowed),
        prompt_ids: Cow::Borrowed(&prompt.ids),
        completion_ids: Cow::Borrowed(&done.tokens),
        logprobs: Some(Cow::Borrowed(&done.logprobs)),
        processed_logprobs: Cow::Borrowed(&done.processed_logprobs),
        mask: None,
        reward: None,
        rewards: None,
        advantage: None,
        trained: None,
        finish_reason: Cow::Owned(done.finish_reason.to_string()),
        truncated: match done.finish_reason {
            FinishReason::Length => true,
            FinishReason::Context => !faults::on(Fault::FullContextNotTruncated),
            FinishReason::Eos | FinishReason::Stop => false,
        },
        max_new: Some(args.generation.max_new),
        ignore_eos: args.generation.ignore_eos,
        stop: Cow::Borrowed(&args.generation.stop.stop),
        regex,
        json_schema,
        kv: lossy(args.generation.cache.engine().kv),
        dtype: policy.is_none().then(|| Cow::Owned(dtype.to_string())),
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        repetition_penalty: sampling.penalty(),
        columns: Cow::Borrowed(&prompt.columns),
    }
    .to_json()
}

fn group_size(text: &str) -> Result<NonZeroUsize, String> {
    number(text, |g: &NonZeroUsize| g.get() <= 65_536, "expected a number from 1 to 65536")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Config, Model};
    use crate::tensor::{Device, Dtype};

    /// The ids of three completions in the order in which one slot completes them.
    fn order(priorities: [i32; 3]) -> Vec<u64> {
        let sizes = Config { vocab: 8, dim: 4, ffn_dim: 4, n_heads: 1, n_kv_heads: 1, ..Config::default() };
        let rest = Config { head_dim: 4, rope_theta: 1e4, norm_eps: 1e-6, n_layers: 1, ..sizes };
        let cfg = Config { max_positions: 16, ..rest };
        let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 1).unwrap();
        let options = EngineOptions { max_batch: 1, ..EngineOptions::default() };
        let mut engine = Engine::new(&model, options).unwrap();
        let line = |priority: i32| format!("{{\"prompt_ids\": [1, 2], \"priority\": {priority}}}\n");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, priorities.map(line).concat()).unwrap();
        let prompts = prompts::read(file.path(), None).unwrap();
        let request = |(id, prompt): (u64, Prompt)| Prioritized {
            request: Request { id, ..Request::greedy(&prompt.ids, 2) },
            priority: prompt.priority,
            group: 0,
        };
        submit(&mut engine, (0..).zip(prompts).map(request).collect(), 1).unwrap();
        let mut order = Vec::new();
        while !engine.is_idle() {
            engine.step().unwrap();
            order.extend(engine.take_finished().iter().map(|done| done.id));
        }
        order
    }

    #[test]
    fn prompts_of_a_higher_priority_run_first() {
        assert_eq!(order([0, 0, 0]), [0, 1, 2]);
        assert_eq!(order([-1, 0, 3]), [2, 1, 0]);
    }

    #[test]
    #[cfg(feature = "faults")]
    fn an_ignored_priority_is_found() {
        assert_eq!(faults::with(Fault::PriorityColumnIgnored, || order([-1, 0, 3])), [0, 1, 2]);
    }
}
