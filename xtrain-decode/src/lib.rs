//! Rollouts with the bits of the training forward: caches, samplers and the engine over rows.
#![forbid(unsafe_code)]

pub mod cache;
mod error;
pub mod sampler;

pub use cache::{Cache, CacheShape, KvKind, Room};
pub use error::{Error, Result};
