//! Durable checkpoints. A power failure at any time loses no acknowledged save. Loading verifies every byte.
//!
//! ```text
//! RUN/lock
//! RUN/checkpoints/step_000200/
//!     config.json  generation_config.json  tokenizer.json  model.safetensors     (a Hugging Face directory)
//!     trainer/optimizer.safetensors  trainer/control.bin                         (the state for an exact resume)
//!     manifest.json                                                              (lengths and checksums)
//! ```
//!
//! A save writes into `step_N.tmp-PID`, syncs every file, writes and syncs the manifest, syncs the
//! directories, renames, syncs the parent, and only then reports success and prunes. So every `step_N` that exists
//! after a power failure is complete. The loader verifies it in any case.
//!
//! ```
//! use std::sync::Arc;
//! use xtrain_model::checkpoint::newest_good;
//! use xtrain_model::checkpoint::{CheckpointContents, CheckpointDir, LoadOptions, NamedTensor, RealFs, TensorView};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! let run = dir.path();
//! let checkpoints = CheckpointDir::open(Arc::new(RealFs), run, 2)?;
//! let norm = TensorView { name: "model.norm.weight", shape: &[3], data: &[1.0, -0.0, 1e-40] };
//! checkpoints.save(&CheckpointContents {
//!     config: &serde_json::json!({"hidden_size": 3}),
//!     numerics: "1",
//!     dtype: "f32",
//!     step: 7,
//!     model: &[norm],
//!     files: &[],
//!     trainer: None,
//! })?;
//! let newest = newest_good(&RealFs, run, &LoadOptions::default(), &NamedTensor::begin)?;
//! assert_eq!((newest.loaded.step, newest.refused.len()), (7, 0));
//! assert_eq!(newest.loaded.tensors[0].data, [1.0, -0.0, 1e-40]);
//! # Ok::<(), xtrain_model::checkpoint::CheckpointError>(())
//! ```
mod checksum;
mod control;
mod dir_ops;
mod directory;
mod error;
mod fs;
mod header;
mod implied;
mod json;
mod load;
mod manifest;
mod newest;
mod read_ahead;
mod save;
mod sealed;
#[cfg(any(test, feature = "faults"))]
mod simulated;
mod snapshot;
mod tensors;
#[cfg(test)]
mod tests;
mod weights;

pub use control::{Control, Cursor};
pub use directory::{CheckpointDir, SavedCheckpoint, has_checkpoint, step_path};
pub use error::{CheckpointError, ParseError, Refused, Result};
pub use fs::RealFs;
pub(crate) use header::encode as safetensors_header;
pub use header::{TensorInfo, TensorView};
pub(crate) use load::{Checkpoint, decode_json, read_json};
pub use load::{ConfigCheck, LoadOptions, LoadedCheckpoint, ShapeCheck, TrainerPart, TrainerState, load};
pub use newest::{DescribedCheckpoint, Newest, newest_described, newest_file, newest_good};
pub(crate) use read_ahead::{PIECE, ReadBuffer};
pub use save::SaveStep;
pub use sealed::{SealedCheck, SealedTensor, load_sealed, save_sealed};
#[cfg(any(test, feature = "faults"))]
pub use simulated::{Injected, SimulatedFs};
pub use snapshot::{CheckpointContents, TrainerView};
pub use tensors::{NamedTensor, NewSink, NonFinite, TensorSink, require_shapes};
pub(crate) use weights::with_manifest;
pub use weights::{Weights, describe, load_weights};
