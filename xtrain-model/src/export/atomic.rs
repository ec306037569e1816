//! Output files and directories that appear completely or not at all.
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::checkpoint::CheckpointError;
use crate::store_error::StoreError;
use crate::{durable, temporary};

/// The temporary path next to `out` that is written first.
pub(super) fn temporary_path(out: &Path) -> Result<PathBuf, StoreError> {
    if out.exists() {
        let got = format!("{}, which exists", out.display());
        return Err(CheckpointError::argument("the export", "a path that does not exist", got).into());
    }
    Ok(temporary::temporary_path(out))
}

/// Creates a temporary file or directory under the lock of names, so that none appears while a signal removes them.
pub(super) fn under_lock<T>(create: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let _names = temporary::lock_names();
    create()
}

/// Writes the content of a file. The inner result holds I/O errors, the outer one errors of the content.
type Fill<'a> = &'a mut dyn FnMut(&mut dyn Write) -> Result<io::Result<()>, StoreError>;

/// Writes a file and makes it durable.
pub(super) fn write_file(path: &Path, fill: Fill<'_>) -> Result<(), StoreError> {
    let file = under_lock(|| File::create_new(path)).map_err(CheckpointError::io("create", path))?;
    let mut to = BufWriter::new(file);
    fill(&mut to)?.map_err(CheckpointError::io("write", path))?;
    let file = to.into_inner().map_err(|e| CheckpointError::io("write", path)(e.into_error()))?;
    Ok(file.sync_all().map_err(CheckpointError::io("sync", path))?)
}

pub(super) fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    Ok(durable::sync_dir(dir).map_err(CheckpointError::io("sync", dir))?)
}

/// The error with `out` in place of `draft`, which is removed.
fn named(error: StoreError, draft: &Path, out: &Path) -> StoreError {
    match error {
        StoreError::Checkpoint(CheckpointError::Io { op, path, source }) => {
            let named = match path.strip_prefix(draft) {
                Ok(inside) if !inside.as_os_str().is_empty() => out.join(inside),
                Ok(_) => out.to_path_buf(),
                Err(_) => path,
            };
            CheckpointError::Io { op, path: named, source }.into()
        }
        error => error,
    }
}

/// Renames a complete `draft` to `out`; removes it after an error.
pub(super) fn publish(done: Result<(), StoreError>, draft: &Path, out: &Path) -> Result<(), StoreError> {
    let _names = temporary::lock_names();
    let done = done.and_then(|()| {
        std::fs::rename(draft, out).map_err(CheckpointError::io("rename", draft))?;
        sync_dir(durable::parent(out))
    });
    if done.is_err() {
        // report the first error
        let _ = if draft.is_dir() { std::fs::remove_dir_all(draft) } else { std::fs::remove_file(draft) };
    }
    done.map_err(|error| named(error, draft, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_path_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("export");
        assert_eq!(temporary_path(&file).unwrap().parent(), file.parent());
        std::fs::write(&file, "").unwrap();
        let error = temporary_path(&file).unwrap_err().to_string();
        let want = format!(
            "the export: expected a path that does not exist, found {}, which exists",
            file.display()
        );
        assert_eq!(error, want);
    }
}
