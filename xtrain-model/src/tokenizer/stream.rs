//! Incremental decoding of tokens to text.
use super::codec::Tokenizer;

/// Decodes a stream of token ids to text. The pieces of [`push`](StreamDecoder::push) and the rest of
/// [`finish`](StreamDecoder::finish) concatenate to exactly [`Tokenizer::decode`] of all ids.
///
/// A piece never ends inside a character: up to three bytes of an incomplete character are buffered. Bytes that
/// cannot become part of a character are decoded to U+FFFD immediately.
#[derive(Debug, Clone)]
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    buffer: Vec<u8>,
}

impl Tokenizer {
    /// A decoder for ids that arrive one at a time.
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder { tokenizer: self, buffer: Vec::new() }
    }
}

impl StreamDecoder<'_> {
    /// The text that `id` completes. Empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> String {
        self.buffer.extend_from_slice(self.tokenizer.token_bytes(id));
        let incomplete = self.buffer.utf8_chunks().last().map_or(0, |chunk| incomplete(chunk.invalid()));
        let complete = self.buffer.len() - incomplete;
        let text = String::from_utf8_lossy(&self.buffer[..complete]).into_owned();
        self.buffer.drain(..complete);
        text
    }

    /// The rest: empty, or one U+FFFD for an incomplete character.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.buffer).into_owned()
    }
}

/// The length of `bytes` if they are the start of a character, else 0. They are the invalid end of a text.
fn incomplete(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.len(),
        _ => 0,
    }
}
