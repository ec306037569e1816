//! Run directories and logs.
//!
//! | file | contents |
//! |---|---|
//! | `config.toml` | the resolved configuration |
//! | `data.json` | digests of the training data |
//! | `metrics.jsonl` | one line per step, a pure function of configuration, seed and step |
//! | `timings.jsonl` | wall-clock times per step |
//! | `checkpoints/` | checkpoints |
//! | `rollouts/`, `logs/` | rollouts and logs |
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
pub use jsonl::JsonLines;
pub use metrics::Metrics;
