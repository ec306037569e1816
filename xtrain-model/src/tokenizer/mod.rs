//! Conversion between text and token ids: bytes, or a `tokenizer.json` of HF: byte-level, or SentencePiece with bytes
//! for unknown characters.
mod alphabet;
mod byte;
mod codec;
mod decoder;
mod encode;
mod error;
#[cfg(test)]
mod every_variant;
mod hf;
mod json;
mod mask;
#[cfg(test)]
mod mutations;
mod pipeline;
mod prefix;
mod settings;
mod stream;
#[cfg(test)]
mod tests;
mod vocabulary;

pub use codec::Tokenizer;
pub(crate) use codec::{CONFIG, FILE, TEMPLATE};
pub(crate) use decoder::byte as byte_of;
pub use error::TokenizerError;
pub(crate) use hf::QWEN2_PATTERN;
pub use stream::StreamDecoder;
pub use vocabulary::{END_OF_TEXT, MAX_VOCABULARY};
