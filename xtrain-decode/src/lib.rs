//! Rollouts with the bits of the training forward: caches, samplers and the engine over rows.
#![forbid(unsafe_code)]

pub mod sampler;
