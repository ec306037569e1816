//! The configuration of a run: sections of keys with defaults, layered from TOML files and flags.
//!
//! Later layers override earlier ones: defaults, files from left to right, and last `--set key=value` together with
//! dedicated flags such as `--seed`, which must not contradict a `--set`. A preset is below the other keys of its layer and replaces the
//! section `[model]` of earlier layers. Every key of a layer is checked against the table of known keys first, so a
//! misspelled key is an error that suggests the correct one.
pub(crate) mod check;
mod derived;
mod error;
#[cfg(test)]
mod every_variant;
mod familiar;
mod grpo;
mod kinds;
mod layer;
#[cfg(test)]
mod limits;
mod nearest;
mod preset;
mod record;
mod resolve;
mod sections;
mod seed;
#[cfg(test)]
mod tests;

pub use derived::Derived;
pub use error::{Error, Result};
pub(crate) use familiar::{absent, familiar_key};
pub use grpo::GrpoSection;
pub use kinds::{DecayKind, Order, Packing, Precision, TaskKind};
pub use layer::Layer;
pub use nearest::nearest;
pub use preset::{PRESETS, Preset, preset};
pub(crate) use record::differing;
pub use record::{KeyDifference, differences, record, restored};
pub use resolve::Resolved;
pub(crate) use resolve::flat;
pub use sections::{DataSection, ModelSection, RunConfig, SampleSection, TrainSection};
pub use seed::seed_value;
