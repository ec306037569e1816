//! Run directories and logs.
//!
//! | file | contents |
//! |---|---|
//! | `config.toml` | the configuration, with computed values as comments |
//! | `data.json` | digests of the training data |
//! | `metrics.jsonl` | one line per step, a pure function of configuration, seed and step |
//! | `timings.jsonl` | wall-clock times per step |
//! | `checkpoints/` | checkpoints |
//! | `rollouts/`, `logs/` | rollouts and logs |
/// The file of a checkpoint with the configuration that a resume is compared with.
pub const RECORD: &str = "run.toml";

mod data;
mod dir;
mod durable;
mod error;
mod jsonl;
mod metrics;
#[cfg(test)]
mod tests;

pub use data::{DataRecord, Digested};
pub use dir::{RunDir, has_checkpoint};
pub use error::{Error, Result};
pub use jsonl::{JsonLines, SetAside};
pub use metrics::Metrics;
