//! Hugging Face's `config.json`: reads the spellings of transformers 4 and 5, writes a file that both read.
mod config_json;
mod fields;
mod rope;
#[cfg(test)]
mod tests;
mod windows;

pub use config_json::{eos_ids, eos_json, from_json, to_json};
