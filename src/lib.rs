//! Train and run small transformer language models with bit-exact numerics.
//!
//! Inference computes bitwise the same logits as the training forward pass: with or without a KV cache, for any batch
//! size, prefill chunk and number of threads. Training runs are reproducible and resume bit-identically. The order of
//! every reduction is specified in `docs/numerics.md`.
//!
//! This crate contains the command line program `xtrain` and re-exports the three libraries:
//!
//! | module | contents |
//! |---|---|
//! | [`tensor`] | devices, tensors and operations |
//! | [`model`] | the transformer, training, checkpoints, tokenizers, chat templates |
//! | [`decode`] | KV caches, samplers and the batched generation engine |
//! | [`grpo`], [`evaluate`], [`choices`], [`verify`] | training with rewards, validation loss, multiple-choice questions, comparison of rollouts with training |
//! | [`grammar`], [`rollout_file`] | output that matches a regular expression or a JSON schema; files of completions |
//! | [`rewards`] | rewards of completions: built-in tasks and external programs |
//! | `mpi` (feature `mpi`) | the processes that `mpirun` or `srun` started |
//! | [`config`], [`training`], [`run`] | configuration, training loop and run directories of the program |
//!
//! # Example
//!
//! Train a small model to count, then generate from it:
//!
//! ```
//! use xtrain::decode::generate_greedy_cached;
//! use xtrain::model::{Config, Model, OptimConfig, Schedule, Trainer, TrainingExample};
//! use xtrain::tensor::{Device, Dtype};
//!
//! let config = Config {
//!     vocab: 16,
//!     dim: 32,
//!     ffn_dim: 64,
//!     n_layers: 1,
//!     n_heads: 2,
//!     n_kv_heads: 1,
//!     head_dim: 16,
//!     max_positions: 32,
//!     rope_theta: 1e4,
//!     norm_eps: 1e-6,
//!     qk_norm: true,
//!     tie_embeddings: true,
//!     ..Config::default()
//! };
//! let model = Model::init(&config, Dtype::F32, &Device::cpu(), 0)?;
//! let schedule = Schedule::constant(1e-2).with_warmup(5);
//! let mut trainer = Trainer::new(model, OptimConfig::default(), schedule)?;
//! let tokens: Vec<u32> = (0..16).collect();
//! for _ in 0..60 {
//!     trainer.step(vec![TrainingExample::window(&tokens, 1.0)], 1)?;
//! }
//! let completion = generate_greedy_cached(&trainer.model, &[0, 1, 2], 4)?;
//! assert_eq!(completion.tokens, [3, 4, 5, 6]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Open a model (a run, a checkpoint, a Hugging Face directory or a GGUF file) and continue a text:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use xtrain::decode::{EngineOptions, Request, StopConditions, generate};
//! use xtrain::model::store;
//! use xtrain::tensor::{Device, Dtype};
//!
//! let opened = store::open_for_inference(Path::new("Qwen3-0.6B"), Dtype::F32, &Device::cpu())?;
//! let tokenizer = opened.tokenizer.ok_or("no tokenizer")?;
//! let stop = StopConditions { eos: opened.eos, tokens: Vec::new() };
//! let prompt = tokenizer.encode_with_bos("The capital of France is")?;
//! let request = Request { stop, ..Request::sampled(&prompt, 32, 0.8, 0) };
//! for completion in generate(&opened.model, vec![request], EngineOptions::default())? {
//!     println!("{}", completion.text(&tokenizer));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#[macro_use]
mod standard_error;

mod build_info;
pub mod choices;
pub mod cli;
pub mod config;
pub mod evaluate;
pub mod grammar;
pub mod grpo;
#[cfg(test)]
mod key_effects;
mod memory;
mod memory_limit;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(test)]
mod reference;
mod report;
pub mod rewards;
pub mod rollout_file;
pub mod run;
pub mod training;
pub mod verify;

pub use build_info::COMMIT;
pub use xtrain_decode as decode;
pub use xtrain_model as model;
pub use xtrain_tensor as tensor;

/// The README, so that its examples are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The guide to rewards, likewise.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/grpo.md")]
struct GrpoGuide;

/// The guide to the library, likewise.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/library.md")]
struct LibraryGuide;
