//! Rollouts that are bitwise equal to the training forward: KV caches, samplers and the engine.
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
    generate_naive, generate_naive_repeat_kv,
};
pub use sampler::SampleOptions;
