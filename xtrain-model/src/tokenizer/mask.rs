//! Token offsets and token masks.
use std::ops::Range;

use super::byte;
use super::codec::{Kind, Tokenizer};
use super::error::TokenizerError;

impl Tokenizer {
    /// The ids of [`encode`](Tokenizer::encode), each with its byte range in `text`. All ids of one character have
    /// the range of the whole character. An id of a composed character has the range of the first of its characters.
    ///
    /// # Errors
    /// As [`encode`](Tokenizer::encode).
    pub fn encode_with_offsets(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        match &self.kind {
            Kind::Byte => Ok(byte::encode_with_offsets(text)),
            Kind::Hf(encoder) => encoder.encode_with_offsets(text),
        }
    }

    /// The ids of `text` and, for each id, whether it overlaps one of `parts`, increasing byte ranges of `text`. For
    /// the parts of [`ChatTemplate::assistant`](crate::chat::ChatTemplate::assistant) this is HF's `assistant_masks`.
    ///
    /// # Errors
    /// As [`encode`](Tokenizer::encode).
    pub fn encode_masked(
        &self,
        text: &str,
        parts: &[Range<usize>],
    ) -> Result<(Vec<u32>, Vec<bool>), TokenizerError> {
        let ids = self.encode_with_offsets(text)?;
        let mut parts = parts.iter().peekable();
        let inside = |(id, range): (u32, Range<usize>)| {
            while parts.next_if(|part| part.end <= range.start).is_some() {}
            (id, parts.peek().is_some_and(|part| part.start < range.end && !part.is_empty()))
        };
        Ok(ids.into_iter().map(inside).unzip())
    }
}
