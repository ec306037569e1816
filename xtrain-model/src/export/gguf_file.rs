//! Export of a GGUF file.
use std::path::Path;

use super::atomic::{publish, temporary_path, write_file};
use crate::export_source::ExportSource;
use crate::gguf;
use crate::quant::Quant;
use crate::store_error::StoreError;

/// Writes a GGUF file. See [`gguf::write`]. `out` must not exist.
///
/// # Errors
/// As [`gguf::write`].
pub fn gguf(out: &Path, source: &ExportSource<'_>, quant: Quant) -> Result<(), StoreError> {
    let name = out.file_stem().map_or("model".into(), |stem| stem.to_string_lossy().into_owned());
    let draft = temporary_path(out)?;
    let done = write_file(&draft, &mut |to| gguf::write(to, source, &name, quant).map(Ok));
    publish(done, &draft, out)
}
