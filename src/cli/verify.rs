//! `xtrain verify`: compares rollouts with the training forward pass, bit for bit.
use std::path::PathBuf;

use clap::Args;

use super::cache_flags::ExactCacheFlags;
use super::common::{Common, at_least_one, whole};
use super::identity::Identity;
use super::memory_check::require_cache_of;
use super::model_arg::ModelArg;
use super::{CliError, Exit, loaded, out, prompts};
use crate::decode::{EngineOptions, Request};
use crate::model::Model;
use crate::model::comm::Communicator;
use crate::model::json::sorted;
use crate::report::{Progress, Table, units};
use crate::rollout_file::policy_digest;
use crate::verify::{self, RequestedSetting, Verdict};
pub(super) use row::rows;
use row::{Held, Row};

mod row;

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Runs the same rollouts with different KV caches, page sizes, prefill chunks, batch sizes and thread counts, with and \
without shared prompts, with drafted tokens, and with so little room in the cache that sequences are preempted; on a \
GPU also with several steps between two synchronizations of the host. Compares every logit with the training forward \
pass, and every token and log-probability with a naive recompute of the whole prefix for every token. Prints how many \
values were compared and how many differ in any bit. Exits with code 1 if any value differs. --json contains the first \
difference of each setting: sample id, position, value, expected and found bits.

With several processes, started by mpirun, each verifies a part of the settings. They also compare their builds, \
weights and prompts, and the bits of all logits of the training forward pass, and name the process that differs.

Examples:
  xtrain verify runs/shakespeare
  mpirun -n 2 xtrain verify runs/shakespeare --threads 1
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
    cache: ExactCacheFlags,
}

pub(super) fn run(args: &VerifyArgs, comm: &dyn Communicator) -> Result<(), CliError> {
    args.prompts.iter().try_for_each(|file| prompts::require_readable(file, comm))?;
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
    if comm.size() > 1 {
        let identity = Identity::of_command().and("the model", loaded.checkpoint.display());
        let identity = identity.and("the weights", policy_digest(&loaded.model)?);
        identity.and("the prompts", digest(&prompts)).require_equal(comm)?;
    }
    let options = EngineOptions { max_batch: requests.len(), ..args.cache.engine() };
    require_cache_of(&loaded.model, &requests, options)?;
    let verdicts = check(&loaded.model, &requests, &requested(&args.common, &args.cache), comm)?;
    let rows = row::gather(comm, &verdicts)?;
    let mut text = if args.json { json(&rows) } else { table(&rows) };
    if comm.size() > 1 && !args.json {
        text += &format!(
            "The training forward passes of {} processes have the same bits for all {} sequences.\n",
            comm.size(),
            requests.len()
        );
    }
    out::print_verdict(text, conclude(&rows, comm))
}

/// A checksum of the ids of all prompts.
fn digest(prompts: &[Vec<u32>]) -> String {
    let mut bytes = Vec::new();
    for prompt in prompts {
        bytes.extend((prompt.len() as u64).to_le_bytes());
        bytes.extend(prompt.iter().flat_map(|id| id.to_le_bytes()));
    }
    format!("crc32c:{:08x}", crc32c::crc32c(&bytes))
}

/// The setting requested by the flags.
pub(super) fn requested(common: &Common, cache: &ExactCacheFlags) -> RequestedSetting {
    let engine = cache.engine();
    RequestedSetting { threads: common.threads(), kv: engine.kv, chunk: engine.prefill_chunk }
}

/// Verifies the settings of this process with a progress bar.
pub(super) fn check(
    model: &Model,
    requests: &[Request],
    requested: &RequestedSetting,
    comm: &dyn Communicator,
) -> Result<Vec<Verdict>, CliError> {
    let settings = verify::settings(requests.len(), requested, model.device()).len();
    let total = settings.div_ceil(comm.size()) as u64;
    let mut progress = Progress::new("verifying", "setting", total, 0);
    let (mut done, mut values, mut differing) = (0, 0, 0);
    let verdicts = verify::verify_part(model, requests, requested, comm, &mut |verdict| {
        done += 1;
        values += verdict.values;
        differing += verdict.differing;
        progress.at(done, &format!("{} values, {differing} differ", units::count(values)));
    })?;
    progress.finish();
    Ok(verdicts)
}

/// The rows and their total as a table.
pub(super) fn table(rows: &[Held]) -> String {
    let mut table = Table::new(
        &["cache", "prefill", "prompts", "device"],
        &["batch", "rows", "values", "differing", "differing tokens"],
    );
    for (row, _) in rows {
        let chunk = row.prefill_chunk.map_or("whole".to_string(), |n| format!("chunks of {n}"));
        let texts = [row.cache(), chunk, row.prompts.clone(), row.device.clone()].into_iter();
        let numbers = [row.batch as u64, row.rows, row.values, row.differing, row.tokens_differing];
        table.row(texts.chain(numbers.map(|n| n.to_string())));
    }
    let table = table.render();
    let values: u64 = rows.iter().map(|(row, _)| row.values).sum();
    let differing: u64 = rows.iter().map(|(row, _)| row.differing).sum();
    format!("{table}\n{values} values compared with the training forward pass, {differing} differ.\n")
}

fn json(rows: &[Held]) -> String {
    let holds = rows.iter().all(|(_, holds)| *holds);
    let settings: Vec<&Row> = rows.iter().map(|(row, _)| row).collect();
    format!("{}\n", sorted(serde_json::json!({ "holds": holds, "settings": settings })))
}

/// Fails with [`Exit::Difference`] if any value differs.
pub(super) fn conclude(rows: &[Held], comm: &dyn Communicator) -> Result<(), CliError> {
    let Some((bad, _)) = rows.iter().find(|(_, holds)| !holds) else { return Ok(()) };
    let what = match &bad.first {
        Some(first) => format!("bits differ, first at {first}"),
        None => {
            let want = bad.rows_expected + bad.rows_recomputed;
            format!("compared {} rows of logits, expected {want}", bad.rows)
        }
    };
    let process = if comm.size() > 1 { format!("process {}: ", bad.process) } else { String::new() };
    Err(CliError::new(Exit::Difference, format_args!("{process}{}: {what}", bad.cache())))
}
