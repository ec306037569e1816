//! `xtrain generate`: continues one prompt.
use std::io::IsTerminal;

use clap::{ArgGroup, Args};
use serde::Serialize;

use super::common::{token_id, whole};
use super::generation_args::{FINISH_REASONS, GenerationArgs};
use super::loaded::{self, Loaded};
use super::memory_check::require_cache;
use super::{CliError, Exit, out, timed};
use crate::decode::{Engine, EngineOptions, FinishReason};
use crate::report::{Spread, printable, units};

#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("start").required(true).args(["prompt", "tokens"]))]
#[command(after_help = format!("\
Text is streamed as it is generated, in whole characters. On a terminal control characters are replaced; files and \
pipes receive the unmodified text. A model without a tokenizer prints token ids. --json prints one object: tokens \
(the new ids), text, logprobs, logprob_bits (hexadecimal), finish_reason, prompt_tokens, timings.

{FINISH_REASONS}

Examples:
  xtrain generate runs/shakespeare --prompt 'ROMEO:' --max-new 50 --temperature 0.8
  xtrain generate runs/quickstart --tokens 49,50,43,51,52,61 --temperature 0 --json"))]
pub(super) struct GenerateArgs {
    /// Prompt text.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Prompt as token ids, for example 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id)]
    tokens: Option<Vec<u32>>,
    /// Number of the completion; together with the seed it determines the random numbers.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole)]
    sample_id: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    generation: GenerationArgs,
}

#[derive(Serialize)]
struct Generated {
    tokens: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    logprobs: Vec<f32>,
    logprob_bits: Vec<String>,
    finish_reason: String,
    prompt_tokens: usize,
    timings: TimingsJson,
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
    let loaded = loaded::open(args.generation.model.path(), &args.generation.common)?;
    let request = args.generation.request(&loaded, args.sample_id, prompt(args, &loaded)?);
    let cfg = loaded.model.config();
    let flag = if args.prompt.is_some() { "--prompt" } else { "--tokens" };
    request.check(cfg).map_err(|e| CliError::of_request(Exit::Usage, flag, &e))?;
    // Synchronize every step, so that each token is shown as soon as it is generated.
    let (steps_per_sync, max_seq_len) = (1, Some(request.required_len(cfg)));
    let options =
        EngineOptions { steps_per_sync, max_seq_len, max_batch: 1, ..args.generation.cache.engine() };
    require_cache(
        &loaded.model,
        &options,
        "reduce --max-new or the length of the prompt, or use --kv growing",
    )?;
    let mut engine = Engine::new(&loaded.model, options)?;
    let prompt_tokens = request.prompt.len();
    engine.submit(request)?;
    let mut stream = loaded.tokenizer.as_ref().filter(|_| !args.json).map(|t| t.stream_continuation());
    let terminal = std::io::stdout().is_terminal();
    let mut shown = String::new();
    let timings = timed::run(&mut engine, &mut |events| {
        for event in events.iter().filter(|e| !args.json && e.is_text()) {
            shown = match &mut stream {
                Some(stream) if terminal => printable(&stream.push(event.token)),
                Some(stream) => stream.push(event.token),
                None => format!("{} ", event.token),
            };
            out::print(&shown)?;
        }
        Ok(())
    })?;
    let done = engine.take_finished().into_iter().next().expect("one request yields one completion");
    if args.json {
        let generated = Generated {
            text: loaded.tokenizer.as_ref().map(|t| done.text(t)),
            logprob_bits: done.logprobs.iter().map(|x| format!("{:08x}", x.to_bits())).collect(),
            tokens: done.tokens,
            logprobs: done.logprobs,
            finish_reason: done.finish_reason.to_string(),
            prompt_tokens,
            timings: TimingsJson {
                time_to_first_token_ms: timings.time_to_first_token_ms(),
                decode_tokens_per_second: timings.decode_tokens_per_second(),
                total_ms: timings.total_ms(),
                prefill_per_forward_ms: Spread::of_passes(&timings.prefill),
                decode_per_forward_ms: Spread::of_passes(&timings.decode),
            },
        };
        return out::print_json(&generated);
    }
    let rest = stream.map(|stream| stream.finish()).unwrap_or_default();
    let end = if format!("{shown}{rest}").ends_with('\n') { "" } else { "\n" };
    out::print(format!("{rest}{end}"))?;
    let reason = match done.finish_reason {
        FinishReason::Context => format!("context ({} tokens)", cfg.max_positions),
        FinishReason::Length => "length (--max-new)".to_string(),
        other => other.to_string(),
    };
    let (n, first) = (done.tokens.len(), timings.time_to_first_token_ms());
    let rate =
        timings.decode_tokens_per_second().map(|rate| format!(", decode {}", units::rate(rate, "tok")));
    let rate = rate.unwrap_or_default();
    eprintln!("[{n} new tokens, finish reason: {reason}; time to first token {first:.1} ms{rate}]");
    Ok(())
}

fn prompt(args: &GenerateArgs, loaded: &Loaded) -> Result<Vec<u32>, CliError> {
    let Some(text) = &args.prompt else { return Ok(args.tokens.clone().unwrap_or_default()) };
    Ok(loaded.require_tokenizer("--prompt", "pass token ids: --tokens 1,2,3")?.encode_with_bos(text)?)
}
