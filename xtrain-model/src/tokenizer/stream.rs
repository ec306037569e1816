//! Text out of tokens as they come, never half a character.
use super::Tokenizer;

/// Turns a stream of token ids into text. The pieces of [`push`](StreamDecoder::push) and the rest from
/// [`finish`](StreamDecoder::finish) concatenate to exactly [`Tokenizer::decode`] of all ids.
///
/// A piece never ends inside a character: up to three bytes of an incomplete one are held back. Bytes that
/// cannot become a character are U+FFFD at once.
#[derive(Debug, Clone)]
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    held: Vec<u8>,
}

impl<'t> StreamDecoder<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer) -> StreamDecoder<'t> {
        StreamDecoder { tokenizer, held: Vec::new() }
    }

    /// The text that `id` completes; empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> String {
        self.held.extend_from_slice(self.tokenizer.token_bytes(id));
        let mut text = String::new();
        let keep = take_text(&self.held, &mut text);
        self.held.drain(..self.held.len() - keep);
        text
    }

    /// What was held back: empty, or one U+FFFD for a character that never became complete.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

/// Appends to `text` what can no longer change and returns how many last bytes are the start of a character.
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
