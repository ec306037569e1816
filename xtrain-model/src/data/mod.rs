//! Text to packed tokens, and packed tokens to what a step trains on.
//!
//! [`prepare`] turns text and JSONL into a [`TokenFile`]; [`Tokens`] is such a file or the same in memory;
//! [`Split`] divides it; [`Windows`] of running text or [`DocumentWindows`] of whole documents say what a step
//! reads, as a pure function of (seed, step); and [`evaluation_windows`] or [`Pieces`] cover each target of the
//! validation part once.
mod conversation;
mod documents;
mod error;
mod excerpt;
mod header;
pub mod jsonl;
mod order;
mod permutation;
mod prepare;
mod split;
mod text;
mod token_file;
mod tokens;
mod windows;
mod writer;

pub use documents::{DocumentWindows, Overflow, PackingStats, Pieces};
pub use error::DataError;
pub use excerpt::TokenWindow;
pub use order::Order;
pub use permutation::Permutation;
pub use prepare::{Content, Prepared, Progress, prepare};
pub use split::{Split, evaluation_windows};
pub use token_file::TokenFile;
pub use tokens::Tokens;
pub use windows::Windows;
pub use writer::TokenWriter;

use crate::tokenizer::Tokenizer;

/// What training does with a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It is read, never a target: a prompt.
    Read,
    /// It is read, and learnt as what follows the token before it.
    Learnt,
}

/// # Errors
/// A tokenizer that has no token to end a document with.
fn separator_of(tokenizer: &Tokenizer) -> Result<u32, DataError> {
    let none = || DataError::argument("prepare", "a tokenizer with an end-of-text token", "one without");
    tokenizer.separator().ok_or_else(none)
}

#[cfg(test)]
mod tests;
