//! The gates: promises that hold across crates, checked bit for bit.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod architecture;
mod branches;
mod cli;
mod commands;
mod commands_chat;
#[cfg(unix)]
mod commands_grpo;
mod commands_rollout;
mod commands_sft;
mod commands_tokenize;
mod commands_train;
mod commands_verify;
mod corrupt;
mod decode;
mod decode_batch;
mod decode_kv;
mod difference;
mod families;
mod families_small;
#[cfg(feature = "faults")]
mod faults;
mod fixtures;
#[cfg(feature = "faults")]
mod focused;
mod gguf;
mod gguf_pieces;
mod golden;
mod golden_policy;
mod gpu;
mod gpu_windows;
mod grpo;
mod grpo_counts;
mod import_export;
mod invariance;
mod kept_sets;
mod kill;
#[cfg(target_os = "linux")]
mod memory_grpo;
mod multi_step;
mod nvcc;
mod open_for_inference;
mod packing;
mod packs;
mod policy;
mod policy_end_to_end;
mod prefix_cache;
mod pytorch;
mod quickstart;
mod resume;
mod rng;
mod signals;
mod tape_gradient;
#[cfg(target_os = "linux")]
mod terminal;
mod training;
mod turns;
mod verify;
