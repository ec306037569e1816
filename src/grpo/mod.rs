//! Reinforcement learning with verifiable rewards: rollouts, rewards, advantages, updates.
//!
//! The loop is truly on-policy: the sampler's log-probabilities are the trainer's. There is no pass for old
//! log-probabilities, and each step compares the bits of both sides ([`update`]).
pub mod agreement;
pub mod batch;
pub mod constraint;
mod error;
pub mod eval;
pub mod examples;
mod exchange;
pub mod from_config;
mod generate;
pub mod metrics;
mod preallocate;
pub mod prompts;
mod record;
pub mod reference;
pub mod rollout;
mod run;
pub mod score;
pub mod scores;
mod step_metrics;
mod step_pass;
mod token_values;
pub mod turns;
pub mod update;
mod verify;
mod warnings;

pub use batch::Batch;
pub use error::Error;
pub use run::{Grpo, GrpoFiles, GrpoObserver, GrpoPhase, crossed};
pub use warnings::Warnings;
