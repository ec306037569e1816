//! `xtrain import`: converts an external model to a run.
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::common::{Common, Force};
use super::model_arg::ModelArg;
use super::output_dir::{OutputDir, Replaceable};
use super::{CliError, export, loaded};
use crate::model::checkpoint::{CheckpointDir, RealFs};
use crate::model::store;
use crate::run::has_checkpoint;
use crate::tensor::faults::{self, Fault};

#[derive(Debug, Clone, Args)]
#[command(allow_missing_positional = true)]
#[command(after_help = "\
Commands can also open Hugging Face directories and GGUF files directly. An imported model additionally has a \
checksum for every tensor and stores its weights in f32. `xtrain train --init RUN` continues training from it. \
--force replaces a run that import has written, and no run of another command.

Examples:
  xtrain import Qwen3-0.6B runs/qwen3
  xtrain import model.gguf runs/model")]
pub(super) struct ImportArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Directory of the new run.
    #[arg(value_name = "RUN", required = true)]
    out: PathBuf,
    #[command(flatten)]
    force: Force,
}

pub(super) fn run(args: &ImportArgs) -> Result<(), CliError> {
    let directory = match is_imported(&args.out) && !has_checkpoint(&args.out) {
        true => OutputDir::in_place(&args.out),
        false => OutputDir::check(&args.out, args.force, IMPORTED)?,
    };
    let loaded = loaded::open_with_master_weights(args.model.path(), &Common::cpu())?;
    let source = loaded.export_source();
    if let Some(parent) = args.out.parent() {
        std::fs::create_dir_all(parent).map_err(|error| CliError::io(parent, &error))?;
    }
    // the directory of another import that runs is locked, and is not removed
    let checkpoints = CheckpointDir::open(Arc::new(RealFs), directory.path(), 2).inspect_err(|_| {
        if faults::on(Fault::LockedImportRemoved) {
            let _ = std::fs::remove_dir_all(directory.path());
        }
    })?;
    match store::save_model(&checkpoints, &source, 0) {
        Ok(saved) => {
            directory.finish()?;
            let checkpoint = saved.path.strip_prefix(directory.path()).unwrap_or(&saved.path);
            export::print_summary("imported into", &args.out.join(checkpoint), &source)
        }
        Err(error) => {
            // an incomplete import; its lock is held, so it is not that of another process
            let _ = std::fs::remove_dir_all(directory.path());
            Err(error.into())
        }
    }
}

/// What `--force` replaces: a run as this command writes it.
const IMPORTED: Replaceable = Replaceable { holds: is_imported, what: "a run of xtrain import" };

/// Whether a directory is what an import writes, or leaves when it is killed: a run without a configuration and without
/// other files.
fn is_imported(run: &Path) -> bool {
    let own = |name: &OsStr| name == "checkpoints" || name == "lock";
    let mut files = run.read_dir().into_iter().flatten().flatten();
    run.is_dir() && files.all(|file| own(&file.file_name()))
}
