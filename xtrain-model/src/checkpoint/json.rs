//! JSON from untrusted files: whole, short enough, shallow enough.
use std::path::Path;

use serde::de::DeserializeOwned;

use super::error::{CheckpointError, Result};

/// The deepest nesting of brackets that is read.
const MAX_DEPTH: u64 = 64;

/// Decodes the text of `file`.
///
/// # Errors
/// [`CheckpointError::Limit`] for nesting above 64; [`CheckpointError::Json`] for bytes that are not UTF-8,
/// not JSON or not a `T`.
pub(super) fn decode<T: DeserializeOwned>(file: &Path, bytes: &[u8]) -> Result<T> {
    let text = std::str::from_utf8(bytes).map_err(|error| CheckpointError::Json {
        file: file.into(),
        detail: format!("not UTF-8: {error}"),
    })?;
    check_depth(file, bytes)?;
    serde_json::from_str(text).map_err(|error| CheckpointError::Json {
        file: file.into(),
        detail: format!("not the JSON expected: {error}"),
    })
}

/// Refuses nesting above [`MAX_DEPTH`] before a recursive parser sees it.
fn check_depth(file: &Path, bytes: &[u8]) -> Result<()> {
    let (mut depth, mut in_string, mut escaped) = (0u64, false, false);
    for &byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(CheckpointError::Limit {
                file: file.into(),
                what: "depth of nested JSON",
                most: MAX_DEPTH,
                got: depth,
            });
        }
    }
    Ok(())
}
