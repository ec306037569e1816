//! The model of a command.
use std::path::{Path, PathBuf};

use clap::Args;

/// A model as the first argument or as a flag. A command with further arguments has `allow_missing_positional`: with
/// the flag, they are the only ones.
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

/// A model as the first argument or as a flag, or none.
#[derive(Debug, Clone, Args)]
#[group(id = "model_given", multiple = false, conflicts_with_all = ["config", "set"])]
pub(super) struct OptionalModelArg {
    /// Model: a run (newest checkpoint), a checkpoint, a Hugging Face directory or a GGUF file [default: the
    /// configured sizes].
    #[arg(value_name = "MODEL")]
    positional: Option<PathBuf>,
    /// Same as the positional MODEL.
    #[arg(short = 'm', long = "model", value_name = "MODEL")]
    flag: Option<PathBuf>,
}

impl OptionalModelArg {
    /// The path of the model.
    pub(super) fn path(&self) -> Option<&Path> {
        self.positional.as_deref().or(self.flag.as_deref())
    }
}

impl ModelArg {
    /// The path of the model.
    pub(super) fn path(&self) -> &Path {
        self.positional.as_deref().or(self.flag.as_deref()).expect("clap requires one of the two")
    }
}
