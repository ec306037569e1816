//! JSON from untrusted files, with a nesting limit.
use std::path::Path;

use serde::de::DeserializeOwned;

use super::error::{CheckpointError, Result};
use crate::json::{MAX_DEPTH, found_at_line, too_deep};

/// Decodes the text of `file`. Fails with [`CheckpointError::Limit`] for nesting above 64, with
/// [`CheckpointError::Malformed`] for bytes that are not UTF-8, not JSON or not a `T`.
pub(super) fn decode<T: DeserializeOwned>(file: &Path, bytes: &[u8]) -> Result<T> {
    let text =
        std::str::from_utf8(bytes).map_err(|error| CheckpointError::json(file, "not UTF-8: ", error))?;
    if too_deep(bytes).is_some() {
        let (what, max) = ("depth of nested JSON", MAX_DEPTH as u64);
        return Err(CheckpointError::Limit { file: file.into(), what, max, got: max + 1 });
    }
    serde_json::from_str(text).map_err(|source| {
        let detail = format!("not the expected JSON: {}", found_at_line(&source));
        CheckpointError::Malformed { file: file.into(), detail, source: Some(Box::new(source)) }
    })
}
