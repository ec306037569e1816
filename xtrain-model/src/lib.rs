//! x
pub mod data;
pub mod tasks;
pub mod tokenizer;
