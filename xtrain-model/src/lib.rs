//! x
pub mod data;
pub mod tokenizer;
