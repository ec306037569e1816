//! The model, written once: [`Model::forward`] runs under a [`Tape`] to train and without one to
//! decode.
mod autograd;
pub mod chat;
pub mod checkpoint;
mod config;
pub mod data;
mod error;
pub mod export;
mod functional;
pub mod gguf;
mod grads;
pub mod hf;
mod json;
mod kv;
mod model;
#[cfg(test)]
mod named_cases;
pub mod objective;
mod optim;
mod param;
mod params;
mod recompute;
mod rows;
mod schedule;
pub mod store;
pub mod tasks;
pub mod third_party;
pub mod tokenizer;
mod trainer;

pub use autograd::{Tape, Var};
pub use config::{Biases, Config};
pub use error::{Error, Result};
pub use functional::{AttnRows, Eager, Functional, KvView, Qkv, Residual};
pub use grads::Grads;
pub use kv::{KvStore, NoCache};
pub use model::Model;
pub use objective::{LogitsProcessing, TrainingExample};
pub use optim::{AdamW, OptimConfig};
pub use param::Param;
pub use params::{Block, Linear, Params};
pub use rows::Rows;
pub use schedule::{Decay, Schedule};
pub use trainer::{ActivationCheckpointing, StepReport, Trainer, normalize_loss_weights};
pub use xtrain_tensor::ops::RopeArgs;
