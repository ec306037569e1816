//! Saving, opening, describing and resuming models.
mod describe;
mod files;
mod open;
mod resume;
mod run_file;
mod save;
mod verify;

#[cfg(test)]
mod every_variant;

pub use crate::store_error::StoreError;
pub use describe::{Described, config_of, describe, tokenizer_of};
pub use files::NUMERICS;
pub use open::{LoadedModel, open, open_for_inference};
pub use resume::{Resumed, resume};
pub use run_file::{RunFile, run_file};
pub use save::{RunState, save, save_model};
pub(crate) use save::{host_tensors, views};
pub use verify::{WeightCounts, verify};
