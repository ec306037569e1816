//! Rollouts: requests in, completions out, many sequences in one list of rows.
mod ahead;
mod completion;
mod engine;
mod fronts;
mod gather;
mod naive;
mod options;
mod pass;
mod plan;
mod request;
mod schedule;
mod sequence;

#[cfg(test)]
mod tests;

pub use completion::{Completion, Counters, Event, FinishReason, LogitRow, Step};
pub use engine::Engine;
pub use fronts::{generate, generate_cached, generate_cached_batch, generate_greedy_cached};
pub use naive::generate_naive;
pub use options::{EngineOptions, LogitsRows, PrefixCaching};
pub use request::{Request, StopConditions};
