//! Export of a model as a Hugging Face directory or a GGUF file. The output appears completely or not at all.
mod atomic;
mod gguf_file;
mod huggingface;
mod shards;

pub use crate::export_source::ExportSource;
pub use gguf_file::gguf;
pub use huggingface::{MAX_SHARD, huggingface};
