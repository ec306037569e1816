//! `xtrain verify`: compares rollouts with the training forward pass, bit for bit.
use std::path::PathBuf;

use clap::Args;

use super::common::{CacheFlags, Common, at_least_one, whole};
use super::memory_check::require_cache_of;
use super::model_arg::ModelArg;
use super::{CliError, Exit, loaded, out, prompts};
use crate::decode::{EngineOptions, Request};
use crate::model::Model;
use crate::model::json::sorted;
use crate::report::{Progress, Table, units};
use crate::verify::{self, CacheRoom, Difference, Prompts, RequestedSetting, Setting, Verdict};

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Runs the same rollouts with different KV caches, page sizes, prefill chunks, batch sizes and thread counts, with and \
without shared prompts, and with so little room in the cache that sequences are preempted; on a GPU also with several \
steps between two synchronizations of the host. Compares every logit with the training forward pass, and every token \
and log-probability with naive decoding, which recomputes the prefix for every token. Prints how many values were \
compared and how many differ in any bit. Exits with code 1 if any value differs. --json contains the first difference of each setting: \
sample id, position, value, expected and found bits.

Examples:
  xtrain verify runs/shakespeare
  xtrain verify runs/quickstart --prompts prompts.jsonl --max-new 64 --json")]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    model: ModelArg,
    /// JSONL file with one prompt per line [default: 6 random prompts].
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Number of new tokens per completion.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    max_new: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Random seed of prompts and sampling, 0 to 2^64 - 1.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole)]
    seed: u64,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    cache: CacheFlags,
}

pub(super) fn run(args: &VerifyArgs) -> Result<(), CliError> {
    let loaded = loaded::open_with_master_weights(args.model.path(), &args.common)?;
    let seed = args.seed;
    let prompts = match &args.prompts {
        None => verify::prompts(&loaded.model, seed, 6, args.max_new),
        Some(file) => {
            let cfg = loaded.model.config();
            let ids = |p: prompts::Prompt| {
                p.require_no_constraint("verify compares rollouts without one")?;
                Ok(p.checked(Request::sampled(&p.ids, args.max_new, 1.0, seed), cfg)?.prompt)
            };
            let prompts = prompts::read(file, loaded.tokenizer.as_ref())?;
            prompts.into_iter().map(ids).collect::<Result<_, CliError>>()?
        }
    };
    let requests = verify::requests(&prompts, args.max_new, seed);
    let options = EngineOptions { max_batch: requests.len(), ..args.cache.engine() };
    require_cache_of(&loaded.model, &requests, options)?;
    let verdicts = check(&loaded.model, &requests, &requested(&args.common, &args.cache))?;
    out::print(if args.json { json(&verdicts) } else { table(&verdicts) })?;
    conclude(&verdicts)
}

/// The setting requested by the flags.
pub(super) fn requested(common: &Common, cache: &CacheFlags) -> RequestedSetting {
    let engine = cache.engine();
    RequestedSetting { threads: common.threads(), kv: engine.kv, chunk: engine.prefill_chunk }
}

/// Verifies with a progress bar.
pub(super) fn check(
    model: &Model,
    requests: &[Request],
    requested: &RequestedSetting,
) -> Result<Vec<Verdict>, CliError> {
    let total = verify::settings(requests.len(), requested, model.device()).len() as u64;
    let mut progress = Progress::new("verifying", "setting", total, 0);
    let (mut done, mut values, mut differing) = (0, 0, 0);
    let verdicts = verify::verify(model, requests, requested, &mut |verdict| {
        done += 1;
        values += verdict.values;
        differing += verdict.differing;
        progress.at(done, &format!("{} values, {differing} differ", units::count(values)));
    })?;
    progress.finish();
    Ok(verdicts)
}

/// The verdicts and their total as a table.
pub(super) fn table(verdicts: &[Verdict]) -> String {
    let mut table = Table::new(
        &["cache", "prefill", "prompts", "device"],
        &["batch", "rows", "values", "differing", "differing tokens"],
    );
    for v in verdicts {
        let s = &v.setting;
        let chunk = s.chunk.map_or("whole".to_string(), |n| format!("chunks of {n}"));
        let row = [cache(s), chunk, sharing(s.prompts).to_string(), s.device.to_string()].into_iter();
        let numbers = [s.batch as u64, v.rows, v.values, v.differing, v.tokens_differing];
        table.row(row.chain(numbers.map(|n| n.to_string())));
    }
    let table = table.render();
    let values: u64 = verdicts.iter().map(|v| v.values).sum();
    let differing: u64 = verdicts.iter().map(|v| v.differing).sum();
    format!("{table}\n{values} values compared with the training forward pass, {differing} differ.\n")
}

/// The cache of a setting, its room and the steps between two synchronizations.
fn cache(setting: &Setting) -> String {
    let mut text = setting.kv.to_string();
    if setting.room == CacheRoom::OneSequence {
        text += ", room for one";
    }
    if setting.steps_per_sync > 1 {
        text += &format!(", {} steps per sync", setting.steps_per_sync);
    }
    text
}

fn room(room: CacheRoom) -> &'static str {
    match room {
        CacheRoom::AllSequences => "all sequences",
        CacheRoom::OneSequence => "one sequence",
    }
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
        serde_json::json!({
            "sample_id": id, "position": position, "what": what, "expected": want, "found": got,
        })
    };
    let row = |v: &Verdict| {
        serde_json::json!({
            "kv": v.setting.kv.to_string(),
            "prefill_chunk": v.setting.chunk,
            "prompts": sharing(v.setting.prompts),
            "batch": v.setting.batch,
            "room": room(v.setting.room),
            "steps_per_sync": v.setting.steps_per_sync,
            "device": v.setting.device.to_string(),
            "rows": v.rows,
            "rows_expected": v.rows_expected,
            "rows_recomputed": v.rows_recomputed,
            "preemptions": v.preemptions,
            "passes_ahead": v.passes_ahead,
            "values": v.values,
            "differing": v.differing,
            "tokens_differing": v.tokens_differing,
            "first": v.first.as_ref().map(first),
        })
    };
    let holds = verdicts.iter().all(Verdict::holds);
    let settings: Vec<_> = verdicts.iter().map(row).collect();
    format!("{:#}\n", sorted(serde_json::json!({ "holds": holds, "settings": settings })))
}

/// Fails with [`Exit::Difference`] if any value differs.
pub(super) fn conclude(verdicts: &[Verdict]) -> Result<(), CliError> {
    let Some(bad) = verdicts.iter().find(|v| !v.holds()) else { return Ok(()) };
    let what = match &bad.first {
        Some(first) => format!("bits differ, first at {first}"),
        None => {
            let want = bad.rows_expected + bad.rows_recomputed;
            format!("compared {} rows of logits, expected {want}", bad.rows)
        }
    };
    Err(CliError::new(Exit::Difference, format_args!("{}: {what}", cache(&bad.setting))))
}
