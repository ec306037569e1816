//! `xtrain import`: a model made elsewhere as a run of ours.
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::common::Common;
use super::{CliError, export, loaded};
use crate::model::checkpoint::{CheckpointDir, RealFs};
use crate::model::export::ExportSource;
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
}

/// Imports the model.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &ImportArgs) -> Result<(), CliError> {
    export::free(&args.out)?;
    let loaded = loaded::open_whole(&args.model, &Common::of_processor())?;
    let subject =
        ExportSource { model: &loaded.model, tokenizer: loaded.tokenizer.as_ref(), eos: &loaded.eos };
    if let Some(above) = args.out.parent() {
        std::fs::create_dir_all(above).map_err(|error| CliError::io(above, &error))?;
    }
    let saved = CheckpointDir::open(Arc::new(RealFs), &args.out, 2)
        .map_err(CliError::from)
        .and_then(|checkpoints| Ok(store::save_model(&checkpoints, &subject)?));
    match saved {
        Ok(saved) => export::say("imported into", &saved.path, &subject),
        Err(error) => {
            // it was not there before: half a run would only be in the way of the next try
            let _ = std::fs::remove_dir_all(&args.out);
            Err(error)
        }
    }
}
