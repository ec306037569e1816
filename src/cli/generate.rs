//! `xtrain generate`: continues one prompt.
use std::io::IsTerminal;

use clap::{Arg, ArgGroup, Args};
use serde::Serialize;

use super::common::{token_id, whole};
use super::generation_args::{FINISH_REASONS, GenerationArgs};
use super::layer_offload::LayerOffloadFlags;
use super::loaded::Loaded;
use super::memory_check::{Models, require_cache_in};
use super::prefix::{SavePrefixFlag, UsedPrefix};
use super::prompt_input::{PromptInput, PromptSource};
use super::speculation::SpeculationReport;
use super::{CliError, Exit, out, timed};
use crate::decode::{Completion, Engine, EngineOptions, FinishReason, Request};
use crate::report::{Spread, Timings, printable, units};
use crate::rollout_file::{TopTokens, top_pairs};

#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("start").required(true).args(["prompt", "tokens"]))]
#[command(mut_args(of_json))]
#[command(after_help = format!("\
Text is streamed as it is generated, in whole characters. On a terminal control characters are replaced; files and \
pipes receive the unmodified text. A model without a tokenizer prints token ids. --json prints one object with the \
names of `xtrain rollout`: prompt, completion, prompt_ids, completion_ids, logprobs, finish_reason, and logprob_bits \
(hexadecimal), timings; with --top-logprobs also top_logprobs; with --prefix also cached_tokens; with --speculate or --draft also \
speculation: drafted_tokens, accepted_tokens, acceptance_rate.

Text that may be the beginning of a --stop text is held back until the next tokens show that it is not.

{FINISH_REASONS}

In the examples, runs/long stands for a model whose context holds long.txt and more.txt.

Examples:
  xtrain generate runs/shakespeare --prompt 'ROMEO:' --max-new 50 --temperature 0.8
  xtrain generate runs/shakespeare --prompt 'ROMEO:' --stop 'JULIET:' \\
      --repetition-penalty 1.1 --echo
  xtrain generate runs/quickstart --prompt '12+34=' --regex '[0-9]{{1,3}}\\n'
  echo 'ROMEO:' | xtrain generate runs/shakespeare --prompt -
  xtrain generate runs/shakespeare --prompt 'ROMEO:' --temperature 0 --speculate lookup
  xtrain generate runs/long --prompt - --save-prefix long.prefix --max-new 1 < long.txt
  cat long.txt more.txt | xtrain generate runs/long --prompt - --prefix long.prefix
  xtrain generate runs/long --prompt - --kv-resident 64MB --offload-dir . < long.txt
  xtrain generate runs/quickstart --tokens 49,50,43,51,52,61 --temperature 0 --json"))]
pub(super) struct GenerateArgs {
    /// Prompt text; - reads standard input, without a line break at its end. An empty text starts from the
    /// BOS token of the model; without one, it is an error.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Prompt as token ids, for example 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id)]
    tokens: Option<Vec<u32>>,
    /// Number of the completion; together with the seed it determines the random numbers.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole)]
    pub(super) sample_id: u64,
    /// Print the prompt before the completion.
    #[arg(long, conflicts_with = "json")]
    echo: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) generation: GenerationArgs,
    #[command(flatten)]
    save: SavePrefixFlag,
    #[command(flatten)]
    offload: LayerOffloadFlags,
}

/// Only the JSON object has a place for the most probable tokens.
fn of_json(flag: Arg) -> Arg {
    if flag.get_id() == "top_logprobs" { flag.requires("json") } else { flag }
}

#[derive(Serialize)]
struct Generated {
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion: Option<String>,
    prompt_ids: Vec<u32>,
    completion_ids: Vec<u32>,
    logprobs: Vec<f32>,
    logprob_bits: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<TopTokens>>,
    finish_reason: FinishReason,
    timings: TimingsJson,
    /// Prompt tokens that came from the file of --prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<SpeculationReport>,
}

#[derive(Serialize)]
struct TimingsJson {
    time_to_first_token_ms: f64,
    decode_tokens_per_second: Option<f64>,
    total_ms: f64,
    prefill_per_forward_ms: Option<Spread>,
    decode_per_forward_ms: Option<Spread>,
}

pub(super) fn run(args: &GenerateArgs) -> Result<(), CliError> {
    generate(args).map_err(|error| args.save.unsaved(error))
}

fn generate(args: &GenerateArgs) -> Result<(), CliError> {
    args.save.check(args.generation.cache.engine().kv, &args.generation.inputs())?;
    let open = args.generation.prefix.opener(Some(&args.save));
    let loaded = open(args.generation.model.path(), &args.generation.common)?;
    args.generation.check_stop_token_ids(&loaded)?;
    let mut stops = args.generation.text_stops(&loaded)?;
    let source = PromptSource::of(args.prompt.as_deref(), args.tokens.as_deref());
    let prompt = source.read(&loaded)?;
    let constraint = args.generation.constraint.compile(&loaded)?;
    let request = Request {
        constraint,
        ..args.generation.parameters.request(&loaded.eos, args.sample_id, prompt.ids.clone())
    };
    let cfg = &args.generation.cache.engine().kv.limits(loaded.model.config());
    request.check(cfg).map_err(|e| CliError::of_request(Exit::Usage, source.name(), &e))?;
    let options = args.engine(request.required_len(cfg))?;
    options.check(loaded.model.config())?;
    let draft = args.generation.open_draft(&loaded)?;
    let memory = args.offload.memory(loaded.model.device(), Some("add --kv-resident"))?;
    require_cache_in(
        &memory,
        Models { model: &loaded.model, draft: draft.as_ref().map(|draft| &draft.model) },
        &options,
        "reduce --max-new or the length of the prompt, use --kv growing, or add --kv-resident and --offload-dir",
    )?;
    let mut engine = Engine::with_memory(&loaded.model, options, memory)?;
    draft.as_ref().map_or(Ok(()), |draft| engine.draft_with(&draft.model))?;
    let prefix = args.generation.prefix.load(&loaded, &mut engine)?;
    let index = engine.submit(request)?;
    let mut printer =
        Printer { shows: !args.json, terminal: std::io::stdout().is_terminal(), ..Printer::default() };
    if args.echo {
        printer.print(&prompt.shown())?;
    }
    let before = printer.printed;
    let (timings, _) = timed::run(&mut engine, &mut |events| {
        for event in events {
            match &mut stops {
                Some(stops) => printer.print(&stops.push(event))?,
                None if event.is_text() => printer.print(&format!("{} ", event.token))?,
                None => {}
            }
        }
        Ok(stops.as_mut().map(|stops| stops.reached()).unwrap_or_default())
    })?;
    let mut done = engine.take_finished().into_iter().next().expect("one request yields one completion");
    let text = stops.as_mut().map(|stops| stops.finish(&mut done));
    let counters = engine.counters();
    let speculation = args.generation.speculation.report(counters);
    let cached_tokens = prefix.as_ref().map(|_| counters.prefix_cache_hits);
    let report = |prefix: &UsedPrefix| prefix.report(&prompt.ids, counters.prefix_cache_hits);
    let reused = prefix.as_ref().map(report);
    let prompt_len = prompt.ids.len();
    if args.json {
        let generated = generated(prompt, done, text, &timings);
        out::print_json(&Generated { speculation, cached_tokens, ..generated })?;
        return args.save.save(&loaded, &mut engine, (index, prompt_len)).map(|_| ());
    }
    // what was held back until the end
    printer
        .print(text.as_deref().and_then(|text| text.get(printer.printed - before..)).unwrap_or_default())?;
    printer.end_line()?;
    print_summary(args, &loaded, &done, &timings);
    let speculation = speculation.map(|speculation| speculation.text());
    [reused, speculation].iter().flatten().for_each(|line| eprintln!("[{line}]"));
    // after the output, which a full disk must not lose
    if let Some(saved) = args.save.save(&loaded, &mut engine, (index, prompt_len))? {
        eprintln!("[{saved}]");
    }
    Ok(())
}

impl GenerateArgs {
    /// The engine options for a sequence of `len` positions.
    ///
    /// # Errors
    /// Flags that exclude each other.
    pub(super) fn engine(&self, len: usize) -> Result<EngineOptions, CliError> {
        Ok(EngineOptions {
            // each token is shown as soon as it is generated
            steps_per_sync: 1,
            max_seq_len: Some(len),
            // the rows of the prompt are saved when the completion has finished
            continuation: self.save.continuation(),
            max_batch: 1,
            ..self.generation.engine()?
        })
    }
}

/// Prints text as it is generated.
#[derive(Debug, Default)]
struct Printer {
    /// Whether text is printed at all.
    shows: bool,
    /// Whether control characters are replaced.
    terminal: bool,
    /// Number of bytes printed so far, before control characters are replaced.
    printed: usize,
    /// Whether the last character printed is a line break.
    at_line_start: bool,
}

impl Printer {
    fn print(&mut self, text: &str) -> Result<(), CliError> {
        if !self.shows || text.is_empty() {
            return Ok(());
        }
        self.printed += text.len();
        self.at_line_start = text.ends_with('\n');
        if self.terminal { out::print(printable(text)) } else { out::print(text) }
    }

    /// Ends the last line, if it is not ended yet.
    fn end_line(&self) -> Result<(), CliError> {
        if self.at_line_start { Ok(()) } else { out::print("\n") }
    }
}

impl PromptInput {
    /// The prompt as `--echo` prints it: text, or ids without a tokenizer.
    fn shown(&self) -> String {
        let ids = || self.ids.iter().map(|id| format!("{id} ")).collect();
        self.text.clone().unwrap_or_else(ids)
    }
}

fn generated(prompt: PromptInput, done: Completion, text: Option<String>, timings: &Timings) -> Generated {
    Generated {
        prompt: prompt.text,
        completion: text,
        prompt_ids: prompt.ids,
        logprob_bits: done.logprobs.iter().map(|x| format!("{:08x}", x.to_bits())).collect(),
        top_logprobs: top_pairs(&done),
        completion_ids: done.tokens,
        logprobs: done.logprobs,
        finish_reason: done.finish_reason,
        timings: TimingsJson {
            time_to_first_token_ms: timings.time_to_first_token_ms(),
            decode_tokens_per_second: timings.decode_tokens_per_second(),
            total_ms: timings.total_ms(),
            prefill_per_forward_ms: Spread::of_passes(&timings.prefill),
            decode_per_forward_ms: Spread::of_passes(&timings.decode),
        },
        cached_tokens: None,
        speculation: None,
    }
}

/// Prints the number of tokens, the finish reason and the speed to standard error.
fn print_summary(args: &GenerateArgs, loaded: &Loaded, done: &Completion, timings: &Timings) {
    let reason = match done.finish_reason {
        FinishReason::Context => format!("context ({} tokens)", loaded.model.config().max_positions),
        FinishReason::Length => "length (--max-new)".to_string(),
        FinishReason::Stop => format!("stop ({})", args.generation.why_stopped()),
        FinishReason::Eos => "eos".to_string(),
    };
    let (n, first) = (done.tokens.len(), timings.time_to_first_token_ms());
    let rate =
        timings.decode_tokens_per_second().map(|rate| format!(", decode {}", units::rate(rate, "tok")));
    let rate = rate.unwrap_or_default();
    let n = units::many(n as u64, "new token");
    eprintln!("[{n}, finish reason: {reason}; time to first token {first:.1} ms{rate}]");
}
