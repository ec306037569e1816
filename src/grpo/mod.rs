//! Reinforcement learning with verifiable rewards: rollouts, rewards, advantages, updates.
//!
//! The loop is truly on-policy: the sampler's log-probabilities are the trainer's. There is no pass for old
//! log-probabilities, and each step compares the bits of both sides ([`update`]).
pub mod batch;
mod error;
pub mod eval;
pub mod from_config;
pub mod metrics;
pub mod prompts;
mod record;
pub mod rollout;
mod run;
pub mod score;
mod scored;
pub mod update;
mod warnings;

pub use error::Error;
pub use run::{End, Grpo, Observer, Phase};
pub use scored::Batch;
pub use warnings::Warnings;
