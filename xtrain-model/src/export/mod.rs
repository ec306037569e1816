//! Export of a model as a Hugging Face directory or a GGUF file. The output appears completely or not at all.
mod atomic;
mod huggingface;
mod shards;

use std::path::Path;

use crate::checkpoint::CheckpointError;
pub use crate::export_source::ExportSource;
use crate::gguf;
use crate::quant::Quant;
use crate::store_error::StoreError;
use crate::temporary;
pub use huggingface::{MAX_SHARD, huggingface};

/// Writes a GGUF file. See [`gguf::write`]. `out` must not exist.
///
/// # Errors
/// As [`gguf::write`].
pub fn gguf(out: &Path, source: &ExportSource<'_>, quant: Quant) -> Result<(), StoreError> {
    write_gguf(&atomic::temporary_path(out)?, out, source, quant)
}

/// [`gguf()`], which replaces `out` if it is an existing file. After an error, that file is unchanged.
///
/// # Errors
/// As [`gguf::write`].
pub fn replace_gguf(out: &Path, source: &ExportSource<'_>, quant: Quant) -> Result<(), StoreError> {
    write_gguf(&temporary::temporary_path(out), out, source, quant)
}

/// Writes `draft` and renames it to `out`.
fn write_gguf(draft: &Path, out: &Path, source: &ExportSource<'_>, quant: Quant) -> Result<(), StoreError> {
    let name = out.file_stem().map_or("model".into(), |stem| stem.to_string_lossy().into_owned());
    let done = atomic::write_file(draft, &mut |to| match gguf::write(to, source, &name, quant) {
        // `write_file` names the file.
        Err(StoreError::Checkpoint(CheckpointError::Io { source, .. })) => Ok(Err(source)),
        written => written.map(Ok),
    });
    atomic::publish(done, draft, out)
}
