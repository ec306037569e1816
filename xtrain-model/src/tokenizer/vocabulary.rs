//! The vocabulary of a tokenizer and its limits.
use std::collections::HashMap;

use super::decoder::Beginning;

/// The special token that ends a document.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// Exclusive upper bound of token ids: the limit of the sampler.
pub const MAX_VOCABULARY: u32 = 1 << 19;

/// The bytes of each token id.
#[derive(Debug, Clone, Default)]
pub(super) struct Vocabulary {
    /// The bytes by id. `None`: no token has this id.
    pub(super) tokens: Vec<Option<Box<[u8]>>>,
    /// The ids of special tokens, sorted.
    pub(super) special: Vec<u32>,
    /// What is removed from the beginning of a decoded text.
    pub(super) beginning: Beginning,
    /// The bytes of the tokens that differ at the beginning of a text: see [`Beginning::InFirstToken`].
    pub(super) first: HashMap<u32, Box<[u8]>>,
}
