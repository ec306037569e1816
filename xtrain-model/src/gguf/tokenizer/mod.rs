//! Conversion of a tokenizer between the metadata of a GGUF file and the files of a Hugging Face tokenizer.
mod keys;
mod pre_tokenizer;
mod read;
mod sentencepiece;
mod write;

pub(super) use read::{eos_ids, kept_fields, read};
pub(super) use write::{write, write_eos_ids, write_none};
