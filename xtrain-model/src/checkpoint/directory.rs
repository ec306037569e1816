//! The checkpoints of a run: one writer at a time, at least two checkpoints kept.
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xtrain_tensor::faults::{self, Fault};

use super::dir_ops::{ensure_dir, exists, list, remove_tree, rename, sync_dir};
use super::error::{CheckpointError, Refused, Result};
use super::fs::{FileSystem, Lock};
use super::save::{self, Observer, SaveStep};
use super::snapshot::CheckpointContents;

/// The checkpoints of a run, locked for writing.
pub struct CheckpointDir {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    keep: usize,
    /// The steps of checkpoints that could not be loaded.
    refused: RefCell<BTreeSet<u64>>,
    _lock: Box<dyn Lock>,
}

/// A completed, durable save.
#[derive(Debug)]
#[must_use = "older checkpoints may not have been removed"]
pub struct SavedCheckpoint {
    /// The checkpoint directory.
    pub path: PathBuf,
    /// Why older checkpoints could not be removed. The save is durable in any case.
    pub not_pruned: Option<CheckpointError>,
}

/// The kind of a directory entry below `checkpoints`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirEntry {
    /// A complete checkpoint.
    Final(u64),
    /// A complete checkpoint that was being replaced by another one of the same step.
    Replaced(u64),
    /// The remains of an interrupted save or removal.
    Temporary,
}

impl CheckpointDir {
    /// Locks a run, creates its directories and removes the remains of interrupted saves. `keep` is the number of
    /// checkpoints that pruning leaves, at least two.
    ///
    /// # Errors
    /// [`CheckpointError::Locked`], [`CheckpointError::Argument`] for a smaller `keep`,
    /// [`CheckpointError::Io`].
    pub fn open(fs: Arc<dyn FileSystem>, run: &Path, keep: usize) -> Result<CheckpointDir> {
        if keep < 2 {
            return Err(CheckpointError::argument("number of checkpoints to keep", "at least 2", keep));
        }
        let dir = run.join("checkpoints");
        ensure_dir(&*fs, run)?;
        let path = run.join("lock");
        let lock = fs.lock(&path).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => CheckpointError::Locked { path: path.clone() },
            _ => CheckpointError::Io { op: "lock", path: path.clone(), source },
        })?;
        ensure_dir(&*fs, &dir)?;
        let checkpoints = CheckpointDir { fs, dir, keep, refused: RefCell::default(), _lock: lock };
        checkpoints.clean()?;
        Ok(checkpoints)
    }

    /// Checkpoints that could not be loaded: as long as this object exists, they are not removed and do not count as kept. A
    /// checkpoint that is saved again counts.
    pub fn exclude(&self, refused: &[Refused]) {
        let names = refused.iter().filter_map(|refused| refused.path.file_name()?.to_str());
        let steps = names.filter_map(|name| match entry(name) {
            Some(DirEntry::Final(step)) => Some(step),
            _ => None,
        });
        self.refused.borrow_mut().extend(steps);
    }

    /// Saves `snapshot` durably as `step_N`, then removes all but the newest `keep` checkpoints up to this step, without
    /// those of [`CheckpointDir::exclude`].
    /// Replaces a checkpoint of the same step and does not touch later steps.
    ///
    /// # Errors
    /// [`CheckpointError::Argument`] for a snapshot that could not be loaded again;
    /// [`CheckpointError::Io`] naming the path. Earlier checkpoints stay intact.
    pub fn save(&self, snapshot: &CheckpointContents<'_>) -> Result<SavedCheckpoint> {
        self.save_observed(snapshot, &mut |_| {})
    }

    /// [`CheckpointDir::save`] that calls `observe` after each step.
    ///
    /// # Errors
    /// As for [`CheckpointDir::save`].
    pub fn save_observed(
        &self,
        snapshot: &CheckpointContents<'_>,
        observe: &mut dyn FnMut(&SaveStep),
    ) -> Result<SavedCheckpoint> {
        snapshot.check()?;
        let name = step_name(snapshot.step);
        let path = self.dir.join(&name);
        let temporary = self.temporary(&name);
        let done = remove_tree(&*self.fs, &temporary)
            .and_then(|()| self.write_and_publish(snapshot, &temporary, &path, observe));
        if let Err(error) = done {
            // Report the first error; the next `open` removes what is left.
            let _ = remove_tree(&*self.fs, &temporary);
            return Err(error);
        }
        observe(&SaveStep::Acknowledged);
        self.refused.borrow_mut().remove(&snapshot.step);
        let not_pruned = self.prune(snapshot.step).err();
        observe(&SaveStep::Pruned);
        Ok(SavedCheckpoint { path, not_pruned })
    }

    /// Removes every checkpoint but that of `step`. `None`: all of them.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] naming the path.
    pub fn retain_step(&self, step: Option<u64>) -> Result<()> {
        self.remove_steps(|saved, _| step != Some(saved))
    }

    /// Removes every checkpoint but those of the smallest and the largest step.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] naming the path.
    pub fn retain_oldest_and_newest(&self) -> Result<()> {
        self.remove_steps(|saved, all| {
            all.iter().any(|&step| step < saved) && all.iter().any(|&step| step > saved)
        })
    }

    /// Removes each checkpoint for whose step, and the steps of all checkpoints, `removed` returns true.
    fn remove_steps(&self, removed: impl Fn(u64, &[u64]) -> bool) -> Result<()> {
        let step = |name: &String| match entry(name) {
            Some(DirEntry::Final(saved)) => Some(saved),
            _ => None,
        };
        let mut names = list(&*self.fs, &self.dir)?;
        let all: Vec<u64> = names.iter().filter_map(step).collect();
        names.retain(|name| step(name).is_some_and(|step| removed(step, &all)));
        self.discard(&names)
    }

    /// All steps up to the acknowledgement: writes into `temporary`, then renames it to `path`.
    fn write_and_publish(
        &self,
        snapshot: &CheckpointContents<'_>,
        temporary: &Path,
        path: &Path,
        observe: &mut Observer<'_>,
    ) -> Result<()> {
        let mut pending = save::write(&*self.fs, temporary, snapshot, observe)?;
        let sync_late = faults::on(Fault::CheckpointRenameBeforeSync);
        if !sync_late {
            pending.sync_files()?;
        }
        pending.seal()?;
        self.publish(temporary, path)?;
        pending.notify(&SaveStep::Renamed);
        if sync_late {
            pending.sync_files()?;
        }
        if faults::on(Fault::CheckpointDirectoryNotSynced) {
            return Ok(());
        }
        sync_dir(&*self.fs, &self.dir)
    }

    /// Renames a durable directory to its final name. An existing checkpoint of that name is moved aside first,
    /// and moved back if the rename fails.
    fn publish(&self, temporary: &Path, path: &Path) -> Result<()> {
        let fs = &*self.fs;
        if !exists(fs, path)? {
            return rename(fs, temporary, path);
        }
        let aside = suffixed(path, "old");
        remove_tree(fs, &aside)?;
        rename(fs, path, &aside)?;
        rename(fs, temporary, path).inspect_err(|_| {
            let _ = rename(fs, &aside, path);
        })
    }

    /// Removes replaced checkpoints and all but the newest `keep` up to `step`.
    fn prune(&self, step: u64) -> Result<()> {
        let names = list(&*self.fs, &self.dir)?;
        let refused = self.refused.borrow();
        let counts = |step: &u64| !refused.contains(step) || faults::on(Fault::RefusedCheckpointCounted);
        let saved = names.iter().filter_map(|name| match entry(name) {
            Some(DirEntry::Final(saved)) if saved <= step => Some(saved).filter(counts),
            _ => None,
        });
        let mut saved: Vec<u64> = saved.collect();
        saved.sort_unstable();
        let keep = self.keep + usize::from(faults::on(Fault::OneCheckpointTooManyKept));
        let older = saved.into_iter().rev().skip(keep).map(step_name);
        let replaced =
            names.iter().filter(|name| matches!(entry(name), Some(DirEntry::Replaced(_)))).cloned();
        self.discard(&older.chain(replaced).collect::<Vec<_>>())
    }

    /// Removes checkpoints. A partially removed checkpoint is never visible under its final name.
    fn discard(&self, names: &[String]) -> Result<()> {
        let fs = &*self.fs;
        for name in names {
            rename(fs, &self.dir.join(name), &self.temporary(name))?;
        }
        if !names.is_empty() {
            sync_dir(fs, &self.dir)?;
        }
        names.iter().try_for_each(|name| remove_tree(fs, &self.temporary(name)))
    }

    /// Removes the remains of interrupted saves, and restores checkpoints that an interrupted replacement moved
    /// aside.
    fn clean(&self) -> Result<()> {
        let fs = &*self.fs;
        sync_dir(fs, &self.dir)?;
        let names = list(fs, &self.dir)?;
        for name in names.iter().filter(|name| entry(name) == Some(DirEntry::Temporary)) {
            remove_tree(fs, &self.dir.join(name))?;
        }
        let mut superseded = Vec::new();
        for name in &names {
            let Some(DirEntry::Replaced(step)) = entry(name) else { continue };
            let path = self.dir.join(step_name(step));
            if exists(fs, &path)? {
                superseded.push(name.clone());
            } else {
                rename(fs, &self.dir.join(name), &path)?;
            }
        }
        self.discard(&superseded)?;
        sync_dir(fs, &self.dir)
    }

    /// The temporary path used to save or remove the checkpoint `name`.
    fn temporary(&self, name: &str) -> PathBuf {
        let name = name.split('.').next().expect("split yields at least one part");
        suffixed(&self.dir.join(name), "tmp")
    }
}

pub(super) fn step_name(step: u64) -> String {
    format!("step_{step:06}")
}

/// The directory of the checkpoint of `step` in the directory of a run, whether it exists or not.
pub fn step_path(run: &Path, step: u64) -> PathBuf {
    run.join("checkpoints").join(step_name(step))
}

/// Whether the directory of a run has a checkpoint. It may be damaged. A save that was killed leaves a temporary
/// directory, which is none.
pub fn has_checkpoint(run: &Path) -> bool {
    let files = run.join("checkpoints").read_dir().into_iter().flatten().flatten();
    let is_checkpoint = |file: std::fs::DirEntry| {
        let kind = file.file_name().to_str().and_then(entry);
        matches!(kind, Some(DirEntry::Final(_) | DirEntry::Replaced(_))) && file.path().is_dir()
    };
    files.into_iter().any(is_checkpoint)
}

/// The kind of the entry `name` below `checkpoints`. `None`: not created by this module.
pub(super) fn entry(name: &str) -> Option<DirEntry> {
    let base = name.split('.').next()?;
    let step: u64 = base.strip_prefix("step_")?.parse().ok()?;
    if step_name(step) != base {
        return None;
    }
    let Some((_, suffix)) = name.split_once('.') else { return Some(DirEntry::Final(step)) };
    let (kind, process) = suffix.split_once('-')?;
    process.parse::<u32>().ok()?;
    match kind {
        "tmp" => Some(DirEntry::Temporary),
        "old" => Some(DirEntry::Replaced(step)),
        _ => None,
    }
}

/// `path` with the suffix `.KIND-PID`.
fn suffixed(path: &Path, kind: &str) -> PathBuf {
    let mut name = path.file_name().expect("the path of a step ends with a name").to_owned();
    name.push(format!(".{kind}-{}", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_that_are_named_as_checkpoints_are_checkpoints() {
        let run = tempfile::tempdir().unwrap();
        let checkpoints = run.path().join("checkpoints");
        std::fs::create_dir(&checkpoints).unwrap();
        for name in ["step_notes", "step_000002.tmp-9", "step_7"] {
            std::fs::create_dir(checkpoints.join(name)).unwrap();
        }
        std::fs::write(step_path(run.path(), 3), "").unwrap();
        assert!(!has_checkpoint(run.path()));
        for name in ["step_000002.old-9", "step_000004"] {
            std::fs::create_dir(checkpoints.join(name)).unwrap();
            assert!(has_checkpoint(run.path()), "{name}");
            std::fs::remove_dir(checkpoints.join(name)).unwrap();
        }
    }
}
