//! `xtrain rollout`: batched completions of many prompts.
use std::path::{Path, PathBuf};

mod args;
mod complete;
mod line;
mod requests;

pub(super) use args::RolloutArgs;
use complete::{Work, complete};
use line::json_line;
use requests::{digest, requests};

use super::completion_writer::{Completed, CompletionWriter, Kept, Output};
use super::exit::Exit;
use super::identity::Identity;
use super::interrupt::Interrupt;
use super::kept_completions::{KeptCompletions, Lines};
use super::{CliError, loaded, output_path, prompts};
use crate::model::comm::Communicator;
use crate::model::shard_samples;
use crate::rollout_file::policy_digest;
use crate::tensor::faults::{self, Fault};

pub(super) fn run(args: &RolloutArgs, comm: &dyn Communicator) -> Result<(), CliError> {
    prompts::require_readable(&args.prompts, comm)?;
    let path = (args.out != Path::new("-")).then_some(&args.out);
    if let Some(path) = path {
        output_path::check_absent(path, args.force)?;
        output_path::check_is_no_input(path, &inputs(args))?;
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
    prompts.iter_mut().try_for_each(|prompt| prompt.take_parameters(&args.generation.parameters))?;
    let count = prompts.len();
    prompts::check_columns(&prompts)?;
    if comm.rank() == 0 {
        prompts::note_columns(&prompts);
    }
    let context = args.generation.cache.engine().kv.max_positions(loaded.model.config());
    prompts::fit(&mut prompts, (&args.generation.parameters, context), args.truncate_prompt, &loaded)?;
    let skipped = count - prompts.len();
    let identity = Identity::of_command().and("the model", loaded.checkpoint.display());
    let language = args.generation.constraint.language()?;
    identity.and("the prompts", digest(&prompts, language.as_ref())).require_equal(comm)?;
    let own = shard_samples(prompts.len(), comm.size(), comm.rank());
    let (first, prompts) = (own.start, &mut prompts[own]);
    args.generation.check_stop_token_ids(&loaded)?;
    let stops = args.generation.text_stops(&loaded)?;
    let requests = requests(args, &loaded, prompts)?;
    let first = if faults::on(Fault::PromptsNumberedByProcess) { 0 } else { first };
    let format = |done: &Completed| {
        let group = done.completion.index / args.n;
        json_line(args, (policy.as_deref(), loaded.model.compute()), (first + group, &prompts[group]), done)
    };
    let ids = requests.iter().map(|of| of.request.id).collect();
    let vocab = loaded.model.config().vocab;
    let top_logprobs = requests.iter().map(|of| of.request.top_logprobs.min(vocab)).collect();
    let lines = Lines { format: &format, ids, top_logprobs, g: args.n.get() };
    let mut kept = match path.filter(|_| args.resume) {
        Some(path) => KeptCompletions::of_interrupted(path, &lines)?,
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

/// The paths that the command reads.
fn inputs(args: &RolloutArgs) -> Vec<PathBuf> {
    args.generation.inputs().into_iter().chain([args.prompts.clone()]).collect()
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
