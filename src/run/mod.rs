//! Run directories and logs.
//!
//! | file | contents |
//! |---|---|
//! | `config.toml` | the configuration, with computed values as comments |
//! | `data.json` | digests of the training data |
//! | `metrics.jsonl` | one line per step, a pure function of configuration, seed and step |
//! | `timings.jsonl` | wall-clock times per step |
//! | `samples.jsonl` | text samples, a pure function of configuration, seed and step |
//! | `checkpoints/` | checkpoints |
//! | `rollouts/` | rollouts |
//! | `logs/` | `session.json`: the last process and its machine; TensorBoard events; reward programs |
mod data;
mod dir;
mod durable;
mod error;
mod jsonl;
mod log_tail;
mod metrics;
mod run_view;
mod session;
#[cfg(test)]
mod tests;

/// The file of a checkpoint with the configuration that a resume is compared with.
pub const RECORD: &str = "run.toml";

pub use crate::model::checkpoint::has_checkpoint;
pub(crate) use data::sha256;
pub use data::{DataRecord, Digested, Tokenization};
pub use dir::RunDir;
pub(crate) use durable::sync_name;
pub use error::{Error, Result};
pub use jsonl::{JsonLines, SetAside, SkippedLines};
pub use metrics::Metrics;
pub use run_view::SampleLine;
pub(crate) use run_view::{Activity, RunView, Scored, is_phase};
pub use session::{Machine, RunSession, SessionEnd, SessionOutcome};
