//! A run directory and what is logged in it.
//!
//! `config.toml` holds the resolved configuration, `data.json` the digests of what is trained on,
//! `metrics.jsonl` a line per step that is a pure
//! function of configuration, seed and step, `timings.jsonl` whatever a clock says, `checkpoints/` the
//! weights, `rollouts/` and `logs/` what their names say.
mod data;
mod dir;
mod error;
mod jsonl;
mod metrics;
#[cfg(test)]
mod tests;

pub use data::{DataRecord, Digested};
pub use dir::RunDir;
pub use error::{Error, Result};
pub use jsonl::JsonLines;
pub use metrics::Metrics;
