//! `xtrain verify`: rollouts against a naive recompute, by bits.
use std::path::PathBuf;

use clap::Args;

use super::ask::at_least_one;
use super::common::{CacheFlags, Common};
use super::{CliError, Exit, loaded, out, prompts};
use crate::decode::Request;
use crate::model::Model;
use crate::report::{Column, Progress, Table, units};
use crate::verify::{self, Difference, Prompts, ResolvedGeneration, Verdict};

/// Flags of `xtrain verify`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Rolls the model out over caches, pages, chunks, batches and threads, and with prompts that several \
completions share; recomputes every logit with the plain training forward, every token and log-probability \
one token at a time; and prints how many values were compared and how many differ by a bit. Exit code 1 on \
any; --json holds the first difference of each setting: sequence, position, what, and the bits.

Examples:
  xtrain verify runs/shakespeare
  xtrain verify runs/quickstart --prompts prompts.jsonl --max-new 64 --json")]
pub struct VerifyArgs {
    /// A run (its newest checkpoint), a checkpoint, a Hugging Face directory or a GGUF file.
    pub model: PathBuf,
    /// JSONL with a prompt a line [default: prompts drawn from the seed].
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// New tokens of a rollout.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    pub max_new: usize,
    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Seed of the prompts and of every random number, from 0 to 2^64 - 1.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
    /// How keys and values are kept.
    #[command(flatten)]
    pub cache: CacheFlags,
}

/// Compares.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &VerifyArgs) -> Result<(), CliError> {
    let opened = loaded::open_whole(&args.model, &args.common)?;
    let seed = args.seed;
    let prompts = match &args.prompts {
        None => verify::prompts(&opened.model, (seed, 6), args.max_new),
        Some(file) => {
            let cfg = opened.model.config();
            let ids = |p: prompts::Prompt| {
                Ok(p.checked(Request::sampled(&p.ids, args.max_new, 1.0, seed), cfg)?.prompt)
            };
            let prompts = prompts::read(file, opened.tokenizer.as_ref())?;
            prompts.into_iter().map(ids).collect::<Result<_, CliError>>()?
        }
    };
    let requests = verify::requests(&prompts, args.max_new, seed);
    let verdicts = check(&opened.model, &requests, &asked(&args.common, &args.cache))?;
    match args.json {
        true => out::print(json(&verdicts))?,
        false => out::print(table(&verdicts))?,
    }
    conclude(&verdicts)
}

/// The setting that the flags ask for.
pub(super) fn asked(common: &Common, cache: &CacheFlags) -> ResolvedGeneration {
    let engine = cache.engine();
    ResolvedGeneration { threads: common.threads(), kv: engine.kv, chunk: engine.prefill_chunk }
}

/// Verifies with progress.
pub(super) fn check(
    model: &Model,
    requests: &[Request],
    asked: &ResolvedGeneration,
) -> Result<Vec<Verdict>, CliError> {
    let total = verify::settings(requests.len(), asked, model.device()).len() as u64;
    let mut progress = Progress::new("verifying", "setting", total, 0);
    let (mut done, mut values, mut differing) = (0, 0, 0);
    let verdicts = verify::verify(model, requests, asked, &mut |verdict| {
        done += 1;
        values += verdict.values;
        differing += verdict.differing;
        progress.at(done, &format!("{} values, {differing} differ", units::count(values)));
    })?;
    progress.finish();
    Ok(verdicts)
}

/// The verdicts, and their sum, as text.
pub(super) fn table(verdicts: &[Verdict]) -> String {
    let words = ["cache", "prompt in", "prompts", "device"].map(Column::words);
    let numbers = ["batch", "rows", "values compared", "bits differ", "tokens differ"].map(Column::numbers);
    let mut table = Table::new(words.into_iter().chain(numbers));
    for v in verdicts {
        let s = &v.setting;
        let chunk = s.chunk.map_or("one pass".to_string(), |n| format!("pieces of {n}"));
        let row = [s.kv.to_string(), chunk, sharing(s.prompts).to_string(), s.device.to_string()].into_iter();
        let numbers = [s.batch as u64, v.rows, v.values, v.differing, v.tokens_differing];
        table.row(row.chain(numbers.map(|n| n.to_string())));
    }
    let values: u64 = verdicts.iter().map(|v| v.values).sum();
    let differing: u64 = verdicts.iter().map(|v| v.differing).sum();
    format!("{}\n{values} values compared with the training forward, {differing} differ.\n", table.render())
}

fn sharing(prompts: Prompts) -> &'static str {
    match prompts {
        Prompts::Own => "own",
        Prompts::Shared => "shared",
    }
}

fn json(verdicts: &[Verdict]) -> String {
    let first = |d: &Difference| {
        let Difference { id, position, what, want, got } = d;
        serde_json::json!({ "sequence": id, "position": position, "what": what, "want": want, "got": got })
    };
    let row = |v: &Verdict| {
        serde_json::json!({
            "kv": v.setting.kv.to_string(),
            "prefill_chunk": v.setting.chunk,
            "prompts": sharing(v.setting.prompts),
            "batch": v.setting.batch,
            "device": v.setting.device.to_string(),
            "rows": v.rows,
            "rows_due": v.rows_due,
            "values": v.values,
            "differing": v.differing,
            "tokens_differing": v.tokens_differing,
            "first": v.first.as_ref().map(first),
        })
    };
    let holds = verdicts.iter().all(Verdict::holds);
    let settings: Vec<_> = verdicts.iter().map(row).collect();
    format!("{:#}\n", serde_json::json!({ "holds": holds, "settings": settings }))
}

/// An error where anything differs.
pub(super) fn conclude(verdicts: &[Verdict]) -> Result<(), CliError> {
    let Some(bad) = verdicts.iter().find(|v| !v.holds()) else { return Ok(()) };
    let what = match &bad.first {
        Some(first) => format!("bits differ, first at {first}"),
        None => format!("{} rows of logits were compared, want {}", bad.rows, bad.rows_due),
    };
    Err(CliError::new(Exit::Difference, format_args!("{}: {what}", bad.setting.kv)))
}
