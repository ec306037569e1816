//! Decoding of tokens to text, at once or incrementally.
use std::str::Utf8Error;

use xtrain_tensor::faults::{self, Fault};

use super::codec::Tokenizer;
use super::decoder::Beginning;

/// Decodes a stream of token ids to text. The pieces of [`push`](StreamDecoder::push) and the rest of
/// [`finish`](StreamDecoder::finish) concatenate to exactly [`Tokenizer::decode`] of all ids.
///
/// A piece never ends inside a character: up to three bytes of an incomplete character are buffered. Bytes that
/// cannot become part of a character are decoded to U+FFFD immediately.
#[derive(Debug, Clone)]
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    /// What is removed from the ids that follow.
    beginning: Beginning,
    buffer: Vec<u8>,
}

impl Tokenizer {
    /// The text of `ids`, including special tokens: their bytes concatenated, without the space that a SentencePiece
    /// tokenizer adds to the beginning of a text. Invalid UTF-8 and ids outside the vocabulary become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.decoded(ids, self.vocabulary.beginning)
    }

    /// The text of `ids` that continue other text, such as a completion: all of their bytes.
    pub fn decode_continuation(&self, ids: &[u32]) -> String {
        self.decoded(ids, Beginning::Whole)
    }

    fn decoded(&self, ids: &[u32], mut beginning: Beginning) -> String {
        let bytes: Vec<u8> =
            ids.iter().flat_map(|&id| self.next_bytes(id, &mut beginning)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes of one id without what `beginning` removes, which is updated.
    fn next_bytes(&self, id: u32, beginning: &mut Beginning) -> &[u8] {
        let bytes = self.token_bytes(id);
        match *beginning {
            Beginning::Whole => bytes,
            Beginning::Spaces(most) => {
                let spaces = bytes.iter().take(most).take_while(|&&byte| byte == b' ').count();
                let rest = &bytes[spaces..];
                *beginning =
                    if rest.is_empty() { Beginning::Spaces(most - spaces) } else { Beginning::Whole };
                rest
            }
            Beginning::InFirstToken(_) => {
                *beginning = Beginning::Whole;
                self.vocabulary.first.get(&id).map_or(bytes, |bytes| bytes)
            }
        }
    }

    /// A decoder for ids that arrive one at a time.
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder { tokenizer: self, beginning: self.vocabulary.beginning, buffer: Vec::new() }
    }

    /// A decoder for ids that continue other text. Its pieces concatenate to
    /// [`decode_continuation`](Tokenizer::decode_continuation).
    pub fn stream_continuation(&self) -> StreamDecoder<'_> {
        StreamDecoder { beginning: Beginning::Whole, ..self.stream() }
    }
}

impl StreamDecoder<'_> {
    /// The text that `id` completes. Empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> String {
        self.buffer.extend_from_slice(self.tokenizer.next_bytes(id, &mut self.beginning));
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
    let held = |error: Utf8Error| error.error_len().is_none() || faults::on(Fault::InvalidBytesHeld);
    match std::str::from_utf8(bytes) {
        Err(error) if held(error) => bytes.len(),
        _ => 0,
    }
}
