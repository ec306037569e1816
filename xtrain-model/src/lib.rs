//! x
pub mod tokenizer;
