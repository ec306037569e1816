//! Reading and writing GGUF v3, the model format of llama.cpp. Architectures: `qwen3`, `qwen2` and `llama`.
//!
//! | item | support |
//! |---|---|
//! | types read | F32, F16, BF16, `Q8_0`, `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `IQ4_NL`, `IQ4_XS`, `Q2_K` to `Q6_K`, widened to f32; others are rejected by name |
//! | types written | F32, F16, BF16, `Q8_0`; vectors stay F32; rows whose length is not a multiple of 32 become F16 |
//! | `llama` | GGUF interleaves the row pairs of queries and keys; reading restores the half-split order |
//! | `rope_freqs.weight` | divisors of RoPE frequencies; the llama3 rule if it has exactly these divisors |
//! | tokenizer | `gpt2`: a byte-level BPE with the pre-tokenizer of GPT-2, Qwen2, Llama 3 or `SmolLM`; `llama`: SentencePiece |
//!
//! A file is untrusted input: its header is checked against its length and against the model it describes before
//! any tensor is allocated.
mod config;
mod encode;
mod export;
mod header;
mod import;
mod metadata;
mod names;
#[cfg(test)]
mod tests;
mod tokenizer;

pub use crate::quant::{BlockSize, Quant};
pub use config::rounded_numbers;
pub use export::{element_type, write};
pub use header::{Entry, Header, read_header};
pub(crate) use import::weights;
pub use import::{Imported, config_of, describe, read, recognises, tokenizer_of};
pub use metadata::{Metadata, Value};
