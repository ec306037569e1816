//! The rollout engine: requests in, completions out, many sequences in one batch.
//!
//! | file | contents |
//! |---|---|
//! | `request`, `options`, `completion` | what callers pass in and get back |
//! | `naive` | the oracle: recomputes the whole sequence for every token |
//! | `engine` | the public API, composed of the scheduler and the runner |
//! | `model_handle` | the model of an engine, borrowed or shared |
//! | `scheduler` | sequences, slots, the cache: admission, planning, acceptance, retirement |
//! | `plan` | the data passed from the scheduler to the runner and back |
//! | `runner` | the model and the samplers |
//! | `sequence`, `guide` | the state of one request, and of its constraint |
//! | `speculation` | drafted tokens, and how many a sequence drafts |
//! | `fronts` | convenience functions |
//! | `text_stops`, `stop_matcher` | the text of sequences, and texts that end them |
mod completion;
mod engine;
mod fronts;
mod guide;
mod model_handle;
mod naive;
mod naive_kv;
mod options;
mod plan;
mod request;
mod runner;
mod scheduler;
mod sequence;
mod speculation;
mod stop_matcher;
mod text_stops;

#[cfg(test)]
mod tests;

pub use completion::{Completion, Counters, Event, FinishReason, LogitRow, Step};
pub use engine::Engine;
pub use fronts::{generate, generate_cached, generate_cached_batch, generate_greedy_cached};
pub use model_handle::ModelHandle;
pub use naive::{generate_naive, generate_naive_int8, generate_naive_repeat_kv, generate_naive_sinks};
pub use naive_kv::{int8_kv, sinks_kv};
pub use options::{Continuation, EngineOptions, LogitsRows, Preemption, PrefixCaching, Speculation};
pub use request::{Request, StopConditions};
pub use scheduler::SnapshotId;
pub use text_stops::TextStops;
