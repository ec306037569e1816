#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
pub mod cli;
pub mod config;
pub mod evaluate;
pub mod memory;
pub mod report;
pub mod run;
pub mod training;
pub mod verify;

pub use xtrain_decode as decode;
pub use xtrain_model as model;
pub use xtrain_tensor as tensor;

/// The commit that this build was made from: twelve hexadecimal digits, or `unknown` outside a
/// repository.
pub const COMMIT: &str = env!("XTRAIN_COMMIT");
