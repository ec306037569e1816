//! The content of a checkpoint to be saved: borrowed tensors, files and scalars.
use std::collections::HashSet;

use serde_json::Value;

use super::control::Control;
use super::error::{CheckpointError, Result};
use super::header::{MAX_DIMS, MAX_NAME, MAX_TENSORS, TensorView};
use super::manifest::is_plain_name;

/// The state that an exact resume needs in addition to the model.
#[derive(Debug, Clone, Copy)]
pub struct TrainerView<'a> {
    /// The scalars.
    pub control: &'a Control,
    /// The optimizer's tensors, each named `STATE.PARAMETER`.
    pub optimizer: &'a [TensorView<'a>],
}

/// The content of a checkpoint, in the order of writing.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointContents<'a> {
    /// config.json.
    pub config: &'a Value,
    /// The version of the numeric contract that produced the weights.
    pub numerics: &'a str,
    /// The compute dtype of the run. Weights are always saved as f32.
    pub dtype: &'a str,
    /// Number of optimizer steps completed.
    pub step: u64,
    /// The model's tensors.
    pub model: &'a [TensorView<'a>],
    /// Name and content of other files, such as tokenizer.json.
    pub files: &'a [(&'a str, &'a [u8])],
    /// The trainer's state. `None`: the checkpoint holds only a model.
    pub trainer: Option<TrainerView<'a>>,
}

impl CheckpointContents<'_> {
    /// Rejects a snapshot that could not be loaded again.
    pub(super) fn check(&self) -> Result<()> {
        check_tensors("model tensors", self.model)?;
        let mut names = HashSet::from(["config.json", "model.safetensors", "manifest.json", "trainer"]);
        for (name, _) in self.files {
            if !is_plain_name(name) || !names.insert(name) {
                let got = format!("{name:?}");
                return Err(CheckpointError::argument("files", "unique plain file names", got));
            }
        }
        let Some(TrainerView { control, optimizer }) = self.trainer else { return Ok(()) };
        check_tensors("optimizer tensors", optimizer)?;
        if control.step != self.step {
            return Err(CheckpointError::argument("control.step", "the snapshot's step", control.step));
        }
        let Some(name) = control.unknown_tensor(optimizer.iter().map(|tensor| tensor.name)) else {
            return Ok(());
        };
        Err(CheckpointError::argument("optimizer tensors", "names of the form STATE.PARAMETER", name))
    }
}

/// Rejects tensors that the loader would reject.
fn check_tensors(what: &'static str, tensors: &[TensorView<'_>]) -> Result<()> {
    if tensors.len() > MAX_TENSORS {
        return Err(CheckpointError::argument(what, "at most 100,000", tensors.len()));
    }
    let mut names = HashSet::new();
    for TensorView { name, shape, data } in tensors {
        if name.is_empty() || name.len() > MAX_NAME || *name == "__metadata__" || !names.insert(name) {
            let got = format!("{name:?}");
            return Err(CheckpointError::argument(what, "unique names of 1 to 512 bytes", got));
        }
        let elements = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        if shape.len() > MAX_DIMS || data.is_empty() || elements != Some(data.len()) {
            let got = format!("{name} of shape {shape:?} with {} elements", data.len());
            let want = "at most 8 dimensions, none zero, that match the number of elements";
            return Err(CheckpointError::argument(what, want, got));
        }
        if let Some(at) = data.iter().position(|x| !x.is_finite()) {
            let got = format!("{} at element {at} of {name}", data[at]);
            return Err(CheckpointError::argument(what, "finite values", got));
        }
    }
    Ok(())
}
