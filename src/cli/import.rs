//! `xtrain import`: converts an external model to a run.
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::common::Common;
use super::{CliError, export, loaded};
use crate::model::checkpoint::{CheckpointDir, RealFs};
use crate::model::store;
use crate::run::has_checkpoint;

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Commands can also open Hugging Face directories and GGUF files directly. An imported model additionally has a \
checksum for every tensor and stores its weights in f32. `xtrain train --init RUN` continues training from it.

Examples:
  xtrain import Qwen3-0.6B runs/qwen3
  xtrain import model.gguf runs/model")]
pub(super) struct ImportArgs {
    /// Model: a Hugging Face directory or a GGUF file.
    model: PathBuf,
    /// Directory of the new run.
    #[arg(value_name = "RUN")]
    out: PathBuf,
}

pub(super) fn run(args: &ImportArgs) -> Result<(), CliError> {
    if !is_unfinished(&args.out) {
        export::check_absent(&args.out)?;
    }
    let loaded = loaded::open_with_master_weights(&args.model, &Common::cpu())?;
    let source = loaded.export_source();
    if let Some(parent) = args.out.parent() {
        std::fs::create_dir_all(parent).map_err(|error| CliError::io(parent, &error))?;
    }
    let saved = CheckpointDir::open(Arc::new(RealFs), &args.out, 2)
        .map_err(CliError::from)
        .and_then(|checkpoints| Ok(store::save_model(&checkpoints, &source, 0)?));
    match saved {
        Ok(saved) => export::print_summary("imported into", &saved.path, &source),
        Err(error) => {
            // The directory did not exist before; an incomplete run would block the next attempt.
            let _ = std::fs::remove_dir_all(&args.out);
            Err(error)
        }
    }
}

/// Whether a directory is what an import leaves that was killed: a run without a checkpoint and without other files.
fn is_unfinished(run: &Path) -> bool {
    let own = |name: &OsStr| name == "checkpoints" || name == "lock";
    let mut files = run.read_dir().into_iter().flatten().flatten();
    run.is_dir() && !has_checkpoint(run) && files.all(|file| own(&file.file_name()))
}
