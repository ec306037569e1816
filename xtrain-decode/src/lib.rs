//! Rollouts with the bits of the training forward: caches, samplers and the engine over rows.
#![forbid(unsafe_code)]

pub mod cache;
mod error;
mod rollout;
pub mod sampler;

pub use cache::{Cache, CacheShape, KvKind, Room};
pub use error::{Error, Result};
pub use rollout::{
    Completion, Counters, Engine, EngineOptions, Event, FinishReason, LogitRow, LogitsRows, PrefixCaching,
    Request, Step, StopConditions, generate, generate_cached, generate_cached_batch, generate_greedy_cached,
    generate_naive,
};
pub use sampler::SampleOptions;
