//! Receiving documents as tokens with roles.
use super::error::DataError;
use crate::tokenizer::Tokenizer;

/// The role of a token in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Context only, never a target: a prompt.
    Context,
    /// Context, and a target that contributes to the loss.
    Target,
}

/// Receives consecutive documents.
pub trait DocumentSink {
    /// Appends tokens of role `role` to the document.
    ///
    /// # Errors
    /// An id outside the vocabulary; a write error.
    fn push(&mut self, ids: &[u32], role: Role) -> Result<(), DataError>;

    /// The last token of the current document. `None`: the document is empty.
    fn last(&self) -> Option<u32>;

    /// The token that separates documents.
    fn separator(&self) -> u32;

    /// Ends the document without a separator. Does nothing for an empty document.
    fn cut(&mut self);

    /// Ends the document and appends a separator, which is a target, if it does not end with one. Does nothing for an
    /// empty document.
    ///
    /// # Errors
    /// As [`push`](DocumentSink::push).
    fn end_document(&mut self) -> Result<(), DataError> {
        if self.last().is_some_and(|last| last != self.separator()) {
            self.push(&[self.separator()], Role::Target)?;
        }
        self.cut();
        Ok(())
    }
}

/// The id that ends a document. Fails for a tokenizer without an end-of-text token, in the operation `op`.
pub(crate) fn separator_of(tokenizer: &Tokenizer, op: &'static str) -> Result<u32, DataError> {
    let none = || DataError::argument(op, "a tokenizer with an end-of-text token", "one without");
    tokenizer.separator().ok_or_else(none)
}
