//! A model to be written in an exchange format.
use crate::model::Model;
use crate::tokenizer::Tokenizer;

/// A model to be exported, with its tokenizer.
#[derive(Debug, Clone, Copy)]
pub struct ExportSource<'a> {
    /// The model.
    pub model: &'a Model,
    /// The tokenizer. `None`: export the weights only.
    pub tokenizer: Option<&'a Tokenizer>,
    /// The end-of-text ids.
    pub eos: &'a [u32],
}
