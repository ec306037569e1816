//! Reading untrusted JSON files: size and nesting are limited before parsing.
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::error::TokenizerError;
use crate::json::{MAX_DEPTH, too_deep};

/// Maximum size of a tokenizer file in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The content of `file`, at most 64 MiB. `None`: the file does not exist.
pub(super) fn read(file: &Path) -> Result<Option<Vec<u8>>, TokenizerError> {
    let io = |op, source| TokenizerError::Io { file: file.into(), op, source };
    let open = match File::open(file) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| io("open", e))?,
    };
    let mut bytes = Vec::new();
    open.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| io("read", e))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(bad(file, format!("at most {MAX_BYTES} bytes"), "more".to_string()));
    }
    Ok(Some(bytes))
}

/// Rejects bytes that are not UTF-8, and brackets nested deeper than 64.
pub(super) fn check_text(bytes: &[u8], file: &Path) -> Result<(), TokenizerError> {
    if let Err(error) = std::str::from_utf8(bytes) {
        return Err(bad(file, "UTF-8 text", format!("an invalid byte at {}", error.valid_up_to())));
    }
    let Some(at) = too_deep(bytes) else { return Ok(()) };
    let want = format!("JSON nested at most {MAX_DEPTH} deep");
    Err(bad(file, want, format!("one more level at byte {at}")))
}

pub(super) fn bad(file: &Path, want: impl Into<String>, got: impl Into<String>) -> TokenizerError {
    TokenizerError::Format { file: file.into(), want: want.into(), got: got.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_more_than_64_mib_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut found = [64 << 20, (64 << 20) + 1].map(|length| {
            file.as_file().set_len(length).unwrap();
            read(file.path()).map(|bytes| bytes.unwrap().len()).map_err(|error| error.to_string())
        });
        assert_eq!(found[0], Ok(64 << 20));
        let error = std::mem::replace(&mut found[1], Ok(0)).unwrap_err();
        assert!(error.ends_with("expected at most 67108864 bytes, found more"), "{error}");
    }
}
