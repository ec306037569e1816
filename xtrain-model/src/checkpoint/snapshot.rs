//! What is saved: borrowed tensors, texts and scalars.
use std::collections::HashSet;

use serde_json::Value;

use super::control::Control;
use super::error::{CheckpointError, Result};
use super::header::{MAX_DIMS, MAX_NAME, MAX_TENSORS};
use super::manifest::is_plain_name;

/// A named f32 tensor, row-major.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Its name, as in Hugging Face checkpoints for a model's tensors.
    pub name: &'a str,
    /// Its dimensions, none of them zero.
    pub shape: &'a [usize],
    /// Its elements, as many as the product of `shape`.
    pub data: &'a [f32],
}

/// What an exact resume needs besides the model.
#[derive(Debug, Clone, Copy)]
pub struct TrainerView<'a> {
    /// The scalars.
    pub control: &'a Control,
    /// The optimizer's tensors, each called `STATE.PARAMETER`.
    pub optimizer: &'a [TensorView<'a>],
}

/// All of a checkpoint, in the order in which it is written.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    /// config.json.
    pub config: &'a Value,
    /// The version of the arithmetic that made the weights.
    pub numerics: &'a str,
    /// The type that the run computes in. Weights are saved as f32 all the same.
    pub dtype: &'a str,
    /// Optimizer steps done.
    pub step: u64,
    /// The model's tensors.
    pub model: &'a [TensorView<'a>],
    /// More files of the directory, such as tokenizer.json: name, bytes.
    pub files: &'a [(&'a str, &'a [u8])],
    /// The trainer's state; none for a model that is only exported.
    pub trainer: Option<TrainerView<'a>>,
}

impl Snapshot<'_> {
    /// Refuses what could not be loaded again.
    pub(super) fn check(&self) -> Result<()> {
        check_tensors("model tensors", self.model)?;
        let mut names = HashSet::from(["config.json", "model.safetensors", "manifest.json", "trainer"]);
        for (name, _) in self.files {
            if !is_plain_name(name) || !names.insert(name) {
                return Err(argument("files", "plain names of their own", format!("{name:?}")));
            }
        }
        let Some(TrainerView { control, optimizer }) = self.trainer else { return Ok(()) };
        check_tensors("optimizer tensors", optimizer)?;
        if control.step != self.step {
            return Err(argument("control.step", "the snapshot's step", control.step.to_string()));
        }
        match control.stranger(optimizer.iter().map(|tensor| tensor.name)) {
            Some(name) => {
                Err(argument("optimizer tensors", "names of the form STATE.PARAMETER", name.into()))
            }
            None => Ok(()),
        }
    }
}

/// Refuses tensors that the loader would refuse.
fn check_tensors(what: &'static str, tensors: &[TensorView<'_>]) -> Result<()> {
    if tensors.len() > MAX_TENSORS {
        return Err(argument(what, "at most 100,000", tensors.len().to_string()));
    }
    let mut names = HashSet::new();
    for TensorView { name, shape, data } in tensors {
        if name.is_empty() || name.len() > MAX_NAME || *name == "__metadata__" || !names.insert(name) {
            return Err(argument(what, "names of their own of 1 to 512 bytes", format!("{name:?}")));
        }
        let elements = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        if shape.len() > MAX_DIMS || data.is_empty() || elements != Some(data.len()) {
            let got = format!("{name} of shape {shape:?} with {} elements", data.len());
            return Err(argument(what, "at most 8 dimensions, none zero, that fit the elements", got));
        }
        if let Some(at) = data.iter().position(|x| !x.is_finite()) {
            return Err(argument(what, "finite values", format!("{} at element {at} of {name}", data[at])));
        }
    }
    Ok(())
}

/// The refusal of a field.
fn argument(what: &'static str, want: &'static str, got: String) -> CheckpointError {
    CheckpointError::Argument { what, want, got }
}
