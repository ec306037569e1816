//! The model of a command.
use std::path::{Path, PathBuf};

use clap::Args;

/// A model as the first argument or as a flag.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub(super) struct ModelArg {
    /// Model: a run (newest checkpoint), a checkpoint, a Hugging Face directory or a GGUF file.
    #[arg(value_name = "MODEL")]
    positional: Option<PathBuf>,
    /// Same as the positional MODEL.
    #[arg(short = 'm', long = "model", value_name = "MODEL")]
    flag: Option<PathBuf>,
}

impl ModelArg {
    /// The path of the model.
    pub(super) fn path(&self) -> &Path {
        self.positional.as_deref().or(self.flag.as_deref()).expect("clap requires one of the two")
    }
}
