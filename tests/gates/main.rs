//! The gates: promises that hold across crates, checked bit for bit.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#[cfg(feature = "faults")]
mod accumulators;
mod adamw;
mod architecture;
#[cfg(target_os = "linux")]
mod bad_inputs;
mod branches;
mod bursts;
mod cli;
mod commands;
mod commands_before;
mod commands_bench;
mod commands_cache_kinds;
mod commands_chat;
mod commands_choices;
mod commands_constraint;
mod commands_early;
mod commands_end_tokens;
mod commands_eval_task;
#[cfg(unix)]
mod commands_grpo;
mod commands_lock;
mod commands_memory;
mod commands_offload;
mod commands_overwrite;
mod commands_prefix;
mod commands_prompt;
mod commands_prompt_tokens;
mod commands_rates;
mod commands_report;
mod commands_resume;
mod commands_resume_keys;
mod commands_rollout;
mod commands_rollout_resume;
mod commands_score;
mod commands_sft;
mod commands_situations;
mod commands_speculation;
mod commands_stop;
mod commands_tokenize;
mod commands_top_logprobs;
mod commands_trace;
mod commands_train;
mod commands_validation;
mod commands_verify;
mod commands_watch;
mod config_fields;
mod constraints;
mod conversations;
mod corrupt;
mod corrupt_tokenizers;
mod damaged_files;
mod decode;
mod decode_ahead;
mod decode_batch;
mod decode_kv;
mod difference;
#[cfg(unix)]
mod documented_commands;
mod equal_completions;
mod exact_limits;
mod families;
mod families_small;
#[cfg(feature = "faults")]
mod faults;
mod finite_tails;
mod fixtures;
#[cfg(feature = "faults")]
mod focused;
mod gguf;
mod gguf_pieces;
mod golden;
mod golden_policy;
mod gpu;
mod gpu_peers;
#[cfg(target_os = "linux")]
mod gpu_report;
mod gpu_windows;
mod grpo;
mod grpo_counts;
mod held_rows;
mod import_export;
mod int8;
mod invariance;
mod kept_sets;
mod kill;
mod launch_log;
#[cfg(target_os = "linux")]
mod memory_grpo;
mod memory_train;
mod micro_batches;
#[cfg(all(target_os = "linux", feature = "mpi"))]
mod mpi;
mod multi_step;
mod non_finite_index;
mod nvcc;
mod open_for_inference;
mod packing;
mod packs;
#[cfg(target_os = "linux")]
mod page_faults;
mod policy;
mod policy_end_to_end;
mod prefix_cache;
mod priorities;
mod processes;
mod pytorch;
mod quant_halves;
mod quickstart;
mod resume;
mod resume_data;
mod rng;
mod rope_divisors;
mod rope_scaling;
#[cfg(target_os = "linux")]
mod run_lock;
mod schedules;
mod sentencepiece;
mod shards;
mod signals;
mod sinks;
mod speculation;
mod stop_text;
#[cfg(all(target_os = "linux", feature = "faults"))]
mod syncs;
#[cfg(all(target_os = "linux", feature = "faults"))]
mod system_calls;
mod tape_gradient;
#[cfg(target_os = "linux")]
mod terminal;
mod training;
mod turns;
mod verify;
mod weighted_steps;
