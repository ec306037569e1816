//! The gates: what must hold across crates, in bits.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod cli;
mod commands;
mod corrupt;
mod commands_rollout;
mod commands_train;
mod commands_verify;
mod decode;
mod decode_batch;
mod decode_kv;
mod dice;
mod families;
#[cfg(feature = "faults")]
mod faults;
mod fixtures;
mod golden;
mod golden_policy;
mod gguf;
mod gpu;
mod invariance;
mod kill;
#[cfg(feature = "faults")]
mod own;
mod prefixes;
mod resume;
mod signals;
mod training;
mod verify;
mod whole;
