//! Conversion between text and token ids: bytes, or a byte-level BPE in the `tokenizer.json` format of HF.
mod alphabet;
mod byte;
mod codec;
mod error;
#[cfg(test)]
mod every_variant;
mod hf;
mod json;
mod mask;
#[cfg(test)]
mod mutations;
mod pipeline;
mod settings;
mod stream;
#[cfg(test)]
mod tests;
mod vocabulary;

pub use codec::Tokenizer;
pub(crate) use codec::{CONFIG, FILE, TEMPLATE};
pub use error::TokenizerError;
pub use stream::StreamDecoder;
pub use vocabulary::{END_OF_TEXT, MAX_VOCABULARY};
