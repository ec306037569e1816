//! From text to token ids.
use xtrain_tensor::faults::{self, Fault};

use super::byte;
use super::codec::{Kind, Tokenizer};
use super::error::TokenizerError;

impl Tokenizer {
    /// The ids of `text`. Special tokens in the text are parsed (as in HF). None are added. Cannot fail for the byte
    /// tokenizer.
    ///
    /// # Errors
    /// A text that the tokenizer's pattern cannot process.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &self.kind {
            Kind::Byte => Ok(byte::encode(text)),
            Kind::Hf(encoder) => encoder.encode(text),
        }
    }

    /// The ids of a prompt or of a document: [`bos_id`](Tokenizer::bos_id), then [`encode`](Tokenizer::encode). A text
    /// that begins with this token gets no second one. Chat templates write the token themselves: their text is
    /// encoded by `encode`.
    ///
    /// # Errors
    /// As [`encode`](Tokenizer::encode).
    pub fn encode_with_bos(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.encode(text)?;
        let begins = |bos: &u32| ids.first() == Some(bos) && !faults::on(Fault::BosDoubled);
        let bos = self.bos.filter(|bos| !begins(bos) && !faults::on(Fault::BosNotAdded));
        ids.splice(..0, bos);
        Ok(ids)
    }

    /// The ids of a text that continues other text, such as the completion of a prompt. A SentencePiece tokenizer adds
    /// a space to the beginning of a text, and not to its continuation. For other tokenizers this is
    /// [`encode`](Tokenizer::encode).
    ///
    /// # Errors
    /// As [`encode`](Tokenizer::encode).
    pub fn encode_continuation(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &self.kind {
            Kind::Hf(encoder) if !faults::on(Fault::ContinuationGetsPrefix) => {
                encoder.encode_continuation(text)
            }
            _ => self.encode(text),
        }
    }

    /// The id that begins a prompt or a document: the first token of the post-processor of `tokenizer.json`, such as
    /// `<s>` of Llama 2. `None`: nothing is added.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// The tokenizer without [`bos_id`](Tokenizer::bos_id). Its [`files`](Tokenizer::files) do not change.
    #[must_use]
    pub fn without_bos(mut self) -> Tokenizer {
        self.bos = None;
        self
    }
}
