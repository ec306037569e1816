//! Training data: from text to packed tokens to the batches of a step.
//!
//! [`prepare`] converts text and JSONL to a [`TokenFile`]. [`Tokens`] is such a file or the same content in memory.
//! [`Split`] divides it. [`Windows`] of running text or [`DocumentWindows`] of whole documents determine the batch of
//! a step as a pure function of (seed, step). [`evaluation_windows`] or [`Pieces`] cover each target of the
//! validation part once.
mod conversation;
mod document_sink;
mod documents;
mod error;
mod header;
pub mod jsonl;
mod line_tokens;
mod order;
mod permutation;
mod prepare;
mod split;
mod text;
mod token_file;
mod token_window;
mod tokens;
mod windows;
mod writer;

pub(crate) use document_sink::separator_of;
pub use document_sink::{DocumentSink, Role};
pub use documents::{DocumentWindows, Overflow, PackingStats, Pieces};
pub use error::DataError;
pub use line_tokens::{LineTokens, line_tokens};
pub use order::WindowOrder;
pub use permutation::Permutation;
pub use prepare::{Content, NamedTokenizer, Prepared, prepare};
pub use split::{Split, evaluation_windows};
pub use token_file::TokenFile;
pub use token_window::TokenWindow;
pub use tokens::Tokens;
pub use windows::Windows;
pub use writer::TokenWriter;

#[cfg(test)]
mod tests;
