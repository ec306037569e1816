//! Directory operations whose errors name the path.
use std::io;
use std::path::Path;

use xtrain_tensor::faults::{self, Fault};

use super::error::{CheckpointError, Result};
use super::fs::{FileSystem, Kind};

/// Creates a directory and its parents where they are missing, and makes their names durable.
pub(super) fn ensure_dir(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    let parent = match dir.parent() {
        Some(parent) if parent == Path::new("") => Path::new("."),
        Some(parent) => parent,
        None => return Ok(()),
    };
    if fs.kind(dir).map_err(CheckpointError::io("inspect", dir))? != Kind::Directory {
        if parent != Path::new(".") {
            ensure_dir(fs, parent)?;
        }
        match fs.create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(CheckpointError::io("create", dir)(error));
            }
            _ => {}
        }
    } else if faults::on(Fault::ExistingParentNotSynced) {
        return Ok(());
    }
    sync_dir(fs, parent)
}

pub(super) fn sync_dir(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    fs.sync_dir(dir).map_err(CheckpointError::io("sync", dir))
}

pub(super) fn rename(fs: &dyn FileSystem, from: &Path, to: &Path) -> Result<()> {
    fs.rename(from, to).map_err(CheckpointError::io("rename", from))
}

pub(super) fn list(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<String>> {
    fs.list(dir).map_err(CheckpointError::io("list", dir))
}

/// Whether `path` exists.
pub(super) fn exists(fs: &dyn FileSystem, path: &Path) -> Result<bool> {
    Ok(fs.kind(path).map_err(CheckpointError::io("inspect", path))? != Kind::Missing)
}

/// Removes a file, or a directory with its contents, if it exists. Symbolic links are removed, not followed.
pub(super) fn remove_tree(fs: &dyn FileSystem, path: &Path) -> Result<()> {
    match fs.kind_unfollowed(path).map_err(CheckpointError::io("inspect", path))? {
        Kind::Missing => Ok(()),
        Kind::Directory => {
            for name in list(fs, path)? {
                remove_tree(fs, &path.join(name))?;
            }
            fs.remove_dir(path).map_err(CheckpointError::io("remove", path))
        }
        Kind::File | Kind::Other => fs.remove_file(path).map_err(CheckpointError::io("remove", path)),
    }
}
