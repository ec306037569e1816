//! Ids of a text of which parts are marked.
use std::ops::Range;

use super::{Kind, Tokenizer, TokenizerError, byte, hf};

impl Tokenizer {
    /// The ids of `text`, as [`encode`](Tokenizer::encode) gives them, each with the bytes of `text` that it
    /// stands for. The ids of one character all stand for all of it; one that the normalizer composed stands for
    /// the first of its characters.
    ///
    /// # Errors
    /// As [`encode`](Tokenizer::encode).
    pub fn encode_with_places(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        match &self.kind {
            Kind::Byte => Ok(byte::encode_with_places(text)),
            Kind::Hf(inner) => hf::encode_with_places(inner, text),
        }
    }

    /// The ids of `text` and, for each, whether it stands for a byte of one of `parts`, which rise: the
    /// `assistant_masks` of HF for the parts of [`ChatTemplate::assistant`](crate::chat::ChatTemplate::assistant).
    ///
    /// # Errors
    /// As [`encode`](Tokenizer::encode).
    pub fn encode_masked(
        &self,
        text: &str,
        parts: &[Range<usize>],
    ) -> Result<(Vec<u32>, Vec<bool>), TokenizerError> {
        let ids = self.encode_with_places(text)?;
        let mut parts = parts.iter().peekable();
        let inside = |(id, place): (u32, Range<usize>)| {
            while parts.next_if(|part| part.end <= place.start).is_some() {}
            (id, parts.peek().is_some_and(|part| part.start < place.end && !part.is_empty()))
        };
        Ok(ids.into_iter().map(inside).unzip())
    }
}
