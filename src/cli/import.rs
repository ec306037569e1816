//! `xtrain import`: a model made elsewhere as a run of ours.
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::common::Common;
use super::{CliError, Exit, export, loaded};
use crate::model::checkpoint::{CheckpointDir, RealFs};
use crate::model::export::Subject;
use crate::model::store;

/// Flags of `xtrain import`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Every command reads such a model where it stands; what is imported has a checksum for every tensor besides, \
and weights in f32. `xtrain train --init RUN` trains on from it.

Examples:
  xtrain import Qwen3-0.6B runs/qwen3
  xtrain import model.gguf runs/model")]
pub struct ImportArgs {
    /// A Hugging Face directory or a GGUF file.
    pub model: PathBuf,
    /// Directory of the run to make.
    #[arg(value_name = "RUN")]
    pub out: PathBuf,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
}

/// Imports the model.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &ImportArgs) -> Result<(), CliError> {
    if args.out.exists() {
        let message = format!("{}: there is something already", args.out.display());
        return Err(CliError::new(Exit::Usage, message).hint("name another directory"));
    }
    let loaded = loaded::open(&args.model, &args.common)?;
    let subject = Subject { model: &loaded.model, tokenizer: loaded.tokenizer.as_ref(), eos: &loaded.eos };
    if let Some(above) = args.out.parent() {
        std::fs::create_dir_all(above).map_err(|error| CliError::io(above, &error))?;
    }
    let checkpoints = CheckpointDir::open(Arc::new(RealFs), &args.out, 2)?;
    let saved = store::save_model(&checkpoints, &subject)?;
    export::say("imported into", &saved.path, &subject)
}
