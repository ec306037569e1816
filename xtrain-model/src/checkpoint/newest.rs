//! Lookup of the newest loadable checkpoint of a run.
use std::path::{Path, PathBuf};

use super::dir_ops::list;
use super::directory::{DirEntry, entry};
use super::error::{CheckpointError, Refused, Result};
use super::fs::{FileSystem, Kind};
use super::load::{Checkpoint, LoadOptions, LoadedCheckpoint, load};
use super::manifest;
use super::tensors::{NamedTensor, NewSink, TensorSink};

/// How often a search for the newest checkpoint starts, while a training run removes checkpoints.
const MAX_ATTEMPTS: usize = 16;

/// The newest loadable checkpoint, and the newer ones that were refused.
#[derive(Debug)]
pub struct Newest<T = NamedTensor> {
    /// The loaded checkpoint.
    pub loaded: LoadedCheckpoint<T>,
    /// Newer checkpoints that are damaged. The caller reports them.
    pub refused: Vec<Refused>,
}

/// Finds and loads the newest loadable checkpoint of a run. `begin` creates the sink of each model tensor. Needs no
/// lock.
///
/// # Errors
/// [`CheckpointError::Missing`] for a run without checkpoints; [`CheckpointError::NoneGood`] with each reason if none
/// can be loaded; [`CheckpointError::Io`].
pub fn newest_good<T: TensorSink>(
    fs: &dyn FileSystem,
    run: &Path,
    options: &LoadOptions<'_>,
    begin: NewSink<'_, T>,
) -> Result<Newest<T>> {
    let (loaded, refused) = newest(fs, run, &|path| {
        let loaded = load(fs, path, options, begin)?;
        Ok((loaded.step, loaded))
    })?;
    Ok(Newest { loaded, refused })
}

/// A checkpoint without its tensors, and the newer ones that were refused.
#[derive(Debug)]
pub struct DescribedCheckpoint {
    /// The checkpoint directory.
    pub path: PathBuf,
    /// config.json.
    pub config: serde_json::Value,
    /// Newer checkpoints with a damaged manifest or config.json. The caller reports them.
    pub refused: Vec<Refused>,
}

/// The newest checkpoint with a valid manifest and config.json. Reads no tensor.
///
/// # Errors
/// As [`newest_good`].
pub fn newest_described(fs: &dyn FileSystem, run: &Path) -> Result<DescribedCheckpoint> {
    let ((path, config), refused) =
        newest_opened(fs, run, |path, checkpoint| Ok((path.to_path_buf(), checkpoint.config()?)))?;
    Ok(DescribedCheckpoint { path, config, refused })
}

/// The path and the verified content of the file `name` of the newest checkpoint with a valid manifest. `None`: its
/// manifest does not list the file. Reads no tensor.
///
/// # Errors
/// As [`newest_good`].
pub fn newest_file(fs: &dyn FileSystem, run: &Path, name: &str) -> Result<Option<(PathBuf, Vec<u8>)>> {
    let (newest, _) = newest_opened(fs, run, |path, checkpoint| {
        Ok(checkpoint.file(name)?.map(|bytes| (path.join(name), bytes)))
    })?;
    Ok(newest)
}

/// What `read` returns for the newest checkpoint with a valid manifest that it accepts, and the newer ones that were
/// refused.
fn newest_opened<T>(
    fs: &dyn FileSystem,
    run: &Path,
    read: impl Fn(&Path, &Checkpoint<'_>) -> Result<T>,
) -> Result<(T, Vec<Refused>)> {
    newest(fs, run, &|path| {
        let checkpoint = Checkpoint::open(fs, path)?;
        Ok((checkpoint.manifest.step, read(path, &checkpoint)?))
    })
}

/// The newest checkpoint that `read` accepts and whose step matches its name, and the newer ones that were refused. If
/// a checkpoint is removed while it is read, because a training run has saved newer ones, the search starts again.
fn newest<T>(
    fs: &dyn FileSystem,
    run: &Path,
    read: &dyn Fn(&Path) -> Result<(u64, T)>,
) -> Result<(T, Vec<Refused>)> {
    let mut attempts = 0;
    loop {
        let found = newest_listed(fs, run, read);
        let (Ok((_, refused)) | Err(CheckpointError::NoneGood { refused, .. })) = &found else {
            return found;
        };
        let removed = refused.iter().any(|refused| matches!(fs.kind(&refused.path), Ok(Kind::Missing)));
        attempts += 1;
        if !removed || attempts == MAX_ATTEMPTS {
            return found;
        }
    }
}

fn newest_listed<T>(
    fs: &dyn FileSystem,
    run: &Path,
    read: &dyn Fn(&Path) -> Result<(u64, T)>,
) -> Result<(T, Vec<Refused>)> {
    let dir = run.join("checkpoints");
    if fs.kind(&dir).map_err(CheckpointError::io("inspect", &dir))? != Kind::Directory {
        return Err(CheckpointError::Missing { path: dir, what: "the checkpoints of a run" });
    }
    let mut found: Vec<(u64, bool, String)> = Vec::new();
    for name in list(fs, &dir)? {
        match entry(&name) {
            Some(DirEntry::Final(step)) => found.push((step, true, name)),
            Some(DirEntry::Replaced(step)) => found.push((step, false, name)),
            Some(DirEntry::Temporary) | None => {}
        }
    }
    if found.is_empty() {
        return Err(CheckpointError::Missing { path: dir, what: "at least one step_N" });
    }
    found.sort_unstable();
    let mut refused = Vec::new();
    for (step, _, name) in found.into_iter().rev() {
        let path = dir.join(name);
        match read(&path) {
            Ok((saved, loaded)) if saved == step => return Ok((loaded, refused)),
            Ok((saved, _)) => {
                let file = path.join(manifest::NAME);
                let why = CheckpointError::field(file, "step", step.to_string(), saved);
                refused.push(Refused { path, why });
            }
            Err(why) => refused.push(Refused { path, why }),
        }
    }
    Err(CheckpointError::NoneGood { path: run.into(), refused })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::directory::step_name;
    use super::*;
    use crate::checkpoint::RealFs;

    #[test]
    fn a_checkpoint_that_is_removed_while_it_is_read_is_no_damage() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path();
        let step = |step: u64| run.join("checkpoints").join(step_name(step));
        for old in [1, 2] {
            std::fs::create_dir_all(step(old)).unwrap();
        }
        let reads = Cell::new(0);
        let read = |path: &Path| {
            reads.set(reads.get() + 1);
            if reads.get() == 1 {
                // A training run saves two newer ones.
                for new in [3, 4] {
                    std::fs::create_dir_all(step(new)).unwrap();
                }
                for old in [1, 2] {
                    std::fs::remove_dir_all(step(old)).unwrap();
                }
            }
            if path.is_dir() {
                Ok((4, path.to_path_buf()))
            } else {
                Err(CheckpointError::Missing { path: path.into(), what: "a file" })
            }
        };
        let (found, refused) = newest(&RealFs, run, &read).unwrap();
        assert_eq!((found, refused.len(), reads.get()), (step(4), 0, 3));
    }
}
