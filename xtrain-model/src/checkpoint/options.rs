//! Options of checkpoint loading.
use std::path::Path;

use serde_json::Value;

use super::error::Result;
use super::header::TensorInfo;

/// How to treat weights that are NaN or infinite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NonFinite {
    /// Return an error that names the tensor.
    #[default]
    Refuse,
    /// Load them.
    Allow,
}

/// How to treat the trainer's state. It is verified in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrainerPart {
    /// Load it.
    #[default]
    Load,
    /// Verify it without keeping it in memory. For inference.
    Verify,
}

/// Compares config.json with the tensors of a file. See [`super::require_shapes`].
pub type ShapeCheck<'a> = dyn Fn(&Path, &Value, &[TensorInfo]) -> Result<()> + 'a;

/// Options of checkpoint loading.
#[derive(Default, Clone, Copy)]
pub struct LoadOptions<'a> {
    /// How to treat weights that are NaN or infinite.
    pub non_finite: NonFinite,
    /// Called before any tensor of the model is allocated. `None`: no check.
    pub shapes: Option<&'a ShapeCheck<'a>>,
    /// How to treat the trainer's state.
    pub trainer: TrainerPart,
}
