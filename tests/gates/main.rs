//! The gates: what must hold across crates, in bits.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod ahead;
mod architecture;
mod cli;
mod commands;
mod commands_chat;
mod commands_rollout;
mod commands_sft;
mod commands_tokenize;
mod commands_train;
mod commands_verify;
mod corrupt;
mod decode;
mod decode_batch;
mod decode_kv;
mod dice;
mod exchange;
mod families;
mod families_small;
#[cfg(feature = "faults")]
mod faults;
mod fixtures;
mod gguf;
mod golden;
mod golden_policy;
mod gpu;
mod invariance;
mod kill;
mod nvcc;
mod opened;
#[cfg(feature = "faults")]
mod own;
mod packing;
mod prefixes;
mod pytorch;
mod resume;
mod signals;
#[cfg(target_os = "linux")]
mod terminal;
mod training;
mod verify;
mod whole;
