//! The token that separates documents.
use super::error::DataError;
use crate::tokenizer::Tokenizer;

/// The id that ends a document.
///
/// # Errors
/// A tokenizer without an end-of-text token.
pub(super) fn separator_of(tokenizer: &Tokenizer) -> Result<u32, DataError> {
    let none = || DataError::argument("prepare", "a tokenizer with an end-of-text token", "one without");
    tokenizer.separator().ok_or_else(none)
}
