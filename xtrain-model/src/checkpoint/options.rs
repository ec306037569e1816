//! How strictly a checkpoint is loaded, and what of it.
use std::fmt;
use std::path::Path;

use serde_json::Value;

use super::error::Result;
use super::header::TensorInfo;

/// What becomes of a weight that is NaN or infinite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NonFinite {
    /// It is an error that names its tensor.
    #[default]
    Refuse,
    /// It is loaded.
    Allow,
}

/// What becomes of the trainer's state. It is verified either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrainerPart {
    /// It is loaded.
    #[default]
    Load,
    /// It is not kept: for a model that nobody trains.
    Verify,
}

/// Compares config.json with the tensors of a file; see [`super::require_shapes`].
pub type ShapeCheck<'a> = dyn Fn(&Path, &Value, &[TensorInfo]) -> Result<()> + 'a;

/// How strictly to load.
#[derive(Default, Clone, Copy)]
pub struct LoadOptions<'a> {
    /// What becomes of weights that are NaN or infinite.
    pub non_finite: NonFinite,
    /// Asked before any tensor of the model is allocated.
    pub shapes: Option<&'a ShapeCheck<'a>>,
    /// What becomes of the trainer's state.
    pub trainer: TrainerPart,
}

impl fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shapes = self.shapes.map(|_| "..");
        f.debug_struct("LoadOptions")
            .field("non_finite", &self.non_finite)
            .field("shapes", &shapes)
            .field("trainer", &self.trainer)
            .finish()
    }
}
