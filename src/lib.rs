//! Train tiny transformers and roll them out: one token, one number.
#![forbid(unsafe_code)]
pub mod cli;
pub mod config;
pub mod report;
pub mod run;
