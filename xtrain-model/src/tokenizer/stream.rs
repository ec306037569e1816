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
        let mut text = String::new();
        let keep = take_text(&self.buffer, &mut text);
        self.buffer.drain(..self.buffer.len() - keep);
        text
    }

    /// The rest: empty, or one U+FFFD for an incomplete character.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.buffer).into_owned()
    }
}

/// Appends the final text of `bytes` to `text`. Returns the number of trailing bytes that start an incomplete
/// character.
fn take_text(bytes: &[u8], text: &mut String) -> usize {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                return 0;
            }
            Err(error) => {
                let (valid, bad) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                match error.error_len() {
                    None => return bad.len(),
                    Some(n) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        rest = &bad[n..];
                    }
                }
            }
        }
    }
}
