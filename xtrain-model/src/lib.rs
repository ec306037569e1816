//! Tiny transformers: one forward pass, automatic differentiation, training, checkpoints and exchange formats.
//!
//! [`Model::forward`] is written once. It runs under a [`Tape`] to train and without one to decode.
//!
//! ```
//! use xtrain_model::{Config, Eager, Model, NoCache, OptimConfig, Rows, Schedule, Trainer, TrainingExample};
//! use xtrain_tensor::{Device, Dtype};
//!
//! // A model with random weights, and a trainer with AdamW.
//! let model = Model::init(&Config::tiny(), Dtype::F32, &Device::cpu(), 0)?;
//! let mut trainer = Trainer::new(model, OptimConfig::default(), Schedule::constant(3e-3))?;
//!
//! // Each step takes a batch of examples; here the same text eight times.
//! let text: Vec<u32> = "hello hello hello".bytes().map(u32::from).collect();
//! let batch = || vec![TrainingExample::window(&text, 1.0); 8];
//! let first = trainer.step(batch(), 8)?;
//! let second = trainer.step(batch(), 8)?;
//! assert!(second.loss < first.loss);
//!
//! // The forward pass over whole sequences: one row of logits per token.
//! let rows = Rows::whole(&[&text]);
//! let hidden = trainer.model.forward(&mut Eager, &mut NoCache::new(&rows)?, &rows)?;
//! assert_eq!(trainer.model.logits(&hidden)?.shape(), [text.len(), 257]);
//! # Ok::<(), xtrain_model::Error>(())
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`data`] | packed tokens, splits, windows and batches |
//! | [`tokenizer`], [`chat`] | text to token ids, chat templates |
//! | [`objective`] | the loss and its gradient |
//! | [`store`], [`checkpoint`] | saving, opening and resuming; durable files |
//! | [`export`], [`gguf`], [`hf`] | exchange formats |
//! | [`rl`] | advantages and policy losses |
//! | [`tasks`] | tasks with verifiable answers |
#![forbid(unsafe_code)]
#![warn(clippy::pedantic)]
#![allow(
    clippy::must_use_candidate,
    reason = "nearly every getter would need the attribute, and ignoring a getter is no bug"
)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes and ids are checked against limits below 2^31 when they are read; file formats fix the widths"
)]
#![allow(
    clippy::cast_precision_loss,
    reason = "counts below 2^53 are converted to f64, and hyper-parameters are rounded to f32 by contract"
)]
#![allow(
    clippy::float_cmp,
    reason = "numbers are bit-exact by contract: tests and special cases compare them exactly"
)]
#![allow(
    clippy::similar_names,
    clippy::many_single_char_names,
    reason = "dq, dk, dv and q, k, v are the names of the literature"
)]
mod autograd;
mod backward;
mod batch;
mod block_quants;
pub mod chat;
pub mod checkpoint;
mod config;
pub mod data;
pub mod durable;
mod error;
mod example;
mod exchange;
pub mod export;
mod export_source;
mod functional;
pub mod gguf;
mod gpu_exchange;
mod grads;
pub mod hf;
mod iq4_quants;
pub mod json;
mod k_quants;
mod kept_fields;
mod kv;
mod mix;
mod model;
pub mod objective;
mod optim;
mod param;
mod params;
mod prefix_tree;
mod process_group;
mod processes;
mod quant;
pub mod rl;
mod rope_divisors;
mod rows;
mod schedule;
mod shards;
mod slices;
mod step_examples;
mod step_sum;
pub mod store;
mod store_error;
pub mod tasks;
pub mod temporary;
#[cfg(test)]
mod test_memory;
#[cfg(test)]
mod test_rng;
pub mod third_party;
pub mod tokenizer;
mod trainer;

pub use autograd::{Tape, Var};
pub use backward::ActivationCheckpointing;
pub use config::{Biases, Config};
pub use error::{Error, Result};
pub use example::{Branch, LogitsProcessing, TrainingExample};
pub use exchange::ExchangeTime;
pub use functional::{Eager, Functional, HeadNorm, KvView, QkNorms, Qkv, RowPlaces};
pub use grads::Grads;
pub use kept_fields::KeptFields;
pub use kv::{KvStore, NoCache};
pub use model::Model;
pub use optim::{AdamW, OptimConfig};
pub use param::Param;
pub use params::{Block, Linear, Params};
pub use processes::Processes;
pub use rows::Rows;
pub use schedule::{Decay, Schedule};
pub use shards::shard_samples;
pub use slices::exchange_groups;
pub use step_examples::StepExamples;
pub use trainer::{SetLossWeights, StepGradient, StepReport, Trainer, normalize_loss_weights};
pub use xtrain_comm as comm;
pub use xtrain_tensor::ops::RopeArgs;
