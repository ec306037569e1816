//! What a run is asked to do: sections of keys with defaults, layered from TOML files and flags.
//!
//! Later layers win: defaults, a preset's sizes, files from left to right, `--set key=value`, flags of
//! their own. Every key of a layer is held against the table of known keys before anything is read
//! from it, so that a misspelt key is an error that names its nearest neighbour.
mod check;
mod error;
#[cfg(test)]
mod every_variant;
mod layer;
mod nearest;
mod preset;
mod resolve;
mod sections;
mod seed;
#[cfg(test)]
mod tests;

pub use error::{Error, Result};
pub use layer::Layer;
pub use nearest::nearest;
pub use preset::{PRESETS, Preset, preset};
pub use sections::{
    DataSection, ModelSection, Order, Packing, Precision, RunConfig, SampleSection, Schedule, Task,
    TrainSection,
};
pub use seed::seed_value;
