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

/// The name of the model in `out`: that of the file without `.gguf`. Names such as `Qwen3-0.6B` contain a dot.
fn model_name(out: &Path) -> String {
    let is_gguf = out.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"));
    let name = if is_gguf { out.file_stem() } else { out.file_name() };
    name.map_or("model".into(), |name| name.to_string_lossy().into_owned())
}

/// Writes `draft` and renames it to `out`.
fn write_gguf(draft: &Path, out: &Path, source: &ExportSource<'_>, quant: Quant) -> Result<(), StoreError> {
    let name = model_name(out);
    let done = atomic::write_file(draft, &mut |to| match gguf::write(to, source, &name, quant) {
        // `write_file` names the file.
        Err(StoreError::Checkpoint(CheckpointError::Io { source, .. })) => Ok(Err(source)),
        written => written.map(Ok),
    });
    atomic::publish(done, draft, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_model_is_that_of_its_file_without_gguf() {
        for (out, name) in [
            ("a/Qwen3-0.6B.gguf", "Qwen3-0.6B"),
            ("Qwen3-0.6B", "Qwen3-0.6B"),
            ("Qwen3-0.6B.GGUF", "Qwen3-0.6B"),
            ("model.gguf.part", "model.gguf.part"),
            ("..", "model"),
        ] {
            assert_eq!(model_name(Path::new(out)), name, "{out}");
        }
    }
}
