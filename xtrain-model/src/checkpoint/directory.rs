//! The checkpoints of a run: one writer at a time, at least two kept, the newest good one found.
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xtrain_tensor::faults::{self, Fault};

use super::error::{CheckpointError, Result};
use super::fs::{FileSystem, Kind, Lock};
use super::load::{Checkpoint, Loaded, load_into};
use super::options::LoadOptions;
use super::save::{self, Observer, SaveStep};
use super::snapshot::Snapshot;
use super::tensors::{Begin, NamedTensor, Sink};

/// The checkpoints of a run, held for writing.
pub struct CheckpointDir {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    keep: usize,
    _lock: Box<dyn Lock>,
}

/// A save that is durable.
#[derive(Debug)]
#[must_use = "older checkpoints may not have been removed"]
pub struct Saved {
    /// The checkpoint.
    pub path: PathBuf,
    /// Why older checkpoints could not be removed. The save is durable all the same.
    pub not_pruned: Option<CheckpointError>,
}

/// A checkpoint that was not loaded.
#[derive(Debug)]
pub struct Refused {
    /// The checkpoint.
    pub path: PathBuf,
    /// Why.
    pub why: CheckpointError,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} refused: {}", self.path.display(), self.why)
    }
}

/// The newest checkpoint that can be loaded, and what was refused on the way to it.
#[derive(Debug)]
pub struct Newest<T = NamedTensor> {
    /// The checkpoint.
    pub loaded: Loaded<T>,
    /// Newer ones that are damaged. The caller prints them.
    pub refused: Vec<Refused>,
}

/// What a name below `checkpoints` stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// A whole checkpoint.
    Final(u64),
    /// A whole checkpoint that another one of the same step was about to replace.
    Replaced(u64),
    /// What is left of a save or a removal.
    Temporary,
}

impl CheckpointDir {
    /// Takes the lock of a run, creates its directories, and removes what interrupted saves left. `keep` is
    /// the number of checkpoints that pruning leaves, two or more.
    ///
    /// # Errors
    /// [`CheckpointError::Locked`], [`CheckpointError::Argument`] for a smaller `keep`,
    /// [`CheckpointError::Io`].
    pub fn open(fs: Arc<dyn FileSystem>, run: &Path, keep: usize) -> Result<CheckpointDir> {
        if keep < 2 {
            let (what, want) = ("checkpoints kept", "2 or more");
            return Err(CheckpointError::Argument { what, want, got: keep.to_string() });
        }
        let dir = run.join("checkpoints");
        ensure_dir(&*fs, run)?;
        let path = run.join("lock");
        let lock = fs.lock(&path).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => CheckpointError::Locked { path: path.clone() },
            _ => CheckpointError::Io { op: "lock", path: path.clone(), source },
        })?;
        ensure_dir(&*fs, &dir)?;
        let opened = CheckpointDir { fs, dir, keep, _lock: lock };
        opened.clean()?;
        Ok(opened)
    }

    /// Saves `snapshot` as `step_N`, durably, then removes all but the newest `keep` checkpoints up to this
    /// step. A checkpoint of the same step is replaced; later steps are left alone.
    ///
    /// # Errors
    /// [`CheckpointError::Argument`] for a snapshot that could not be loaded again;
    /// [`CheckpointError::Io`] naming the path. The earlier checkpoints are whole then.
    pub fn save(&self, snapshot: &Snapshot<'_>) -> Result<Saved> {
        self.save_observed(snapshot, &mut |_| {})
    }

    /// [`CheckpointDir::save`] that tells `observe` after each step.
    ///
    /// # Errors
    /// As for [`CheckpointDir::save`].
    pub fn save_observed(
        &self,
        snapshot: &Snapshot<'_>,
        observe: &mut dyn FnMut(&SaveStep),
    ) -> Result<Saved> {
        snapshot.check()?;
        let name = step_name(snapshot.step);
        let path = self.dir.join(&name);
        let temporary = self.temporary(&name);
        let done = remove_tree(&*self.fs, &temporary)
            .and_then(|()| self.write_and_publish(snapshot, [&temporary, &path], observe));
        if let Err(error) = done {
            // The first error is the one to report; what is left goes with the next `open`.
            let _ = remove_tree(&*self.fs, &temporary);
            return Err(error);
        }
        observe(&SaveStep::Acknowledged);
        let not_pruned = self.prune(snapshot.step).err();
        observe(&SaveStep::Pruned);
        Ok(Saved { path, not_pruned })
    }

    /// Everything up to the acknowledgement.
    fn write_and_publish(
        &self,
        snapshot: &Snapshot<'_>,
        [temporary, path]: [&Path; 2],
        observe: &mut Observer<'_>,
    ) -> Result<()> {
        let mut pending = save::write(&*self.fs, temporary, snapshot, observe)?;
        let late = faults::on(Fault::CheckpointRenameBeforeSync);
        if !late {
            pending.sync_files()?;
        }
        pending.seal()?;
        self.publish(temporary, path)?;
        pending.tell(&SaveStep::Renamed);
        if late {
            pending.sync_files()?;
        }
        match faults::on(Fault::CheckpointNameNotSynced) {
            true => Ok(()),
            false => sync_dir(&*self.fs, &self.dir),
        }
    }

    /// Gives a durable directory its final name. What has that name steps aside first, and back if the
    /// renaming fails.
    fn publish(&self, temporary: &Path, path: &Path) -> Result<()> {
        let fs = &*self.fs;
        if fs.kind(path).map_err(CheckpointError::io("inspect", path))? == Kind::Missing {
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
        let mut steps: Vec<u64> = names
            .iter()
            .filter_map(|name| match entry(name) {
                Some(Entry::Final(found)) if found <= step => Some(found),
                _ => None,
            })
            .collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        let older = steps.into_iter().skip(self.keep).map(step_name);
        let replaced = names.iter().filter(|name| matches!(entry(name), Some(Entry::Replaced(_)))).cloned();
        self.discard(older.chain(replaced).collect())
    }

    /// Removes checkpoints so that no part of one is ever seen under its name.
    fn discard(&self, names: Vec<String>) -> Result<()> {
        let fs = &*self.fs;
        for name in &names {
            rename(fs, &self.dir.join(name), &self.temporary(name))?;
        }
        if !names.is_empty() {
            sync_dir(fs, &self.dir)?;
        }
        names.iter().try_for_each(|name| remove_tree(fs, &self.temporary(name)))
    }

    /// Removes what interrupted saves left, and brings back what an interrupted replacement took aside.
    fn clean(&self) -> Result<()> {
        let fs = &*self.fs;
        sync_dir(fs, &self.dir)?;
        let names = list(fs, &self.dir)?;
        for name in names.iter().filter(|name| entry(name) == Some(Entry::Temporary)) {
            remove_tree(fs, &self.dir.join(name))?;
        }
        let mut superseded = Vec::new();
        for name in &names {
            let Some(Entry::Replaced(step)) = entry(name) else { continue };
            let path = self.dir.join(step_name(step));
            match fs.kind(&path).map_err(CheckpointError::io("inspect", &path))? {
                Kind::Missing => rename(fs, &self.dir.join(name), &path)?,
                _ => superseded.push(name.clone()),
            }
        }
        self.discard(superseded)?;
        sync_dir(fs, &self.dir)
    }

    /// Where the save or the removal of a checkpoint happens.
    fn temporary(&self, name: &str) -> PathBuf {
        let name = name.split('.').next().expect("splitting yields at least one piece");
        suffixed(&self.dir.join(name), "tmp")
    }
}

/// Finds and loads the newest checkpoint of a run that can be loaded. No lock is needed.
///
/// # Errors
/// [`CheckpointError::Missing`] for a run without checkpoints; [`CheckpointError::NoneGood`] with the reason
/// for each if none can be loaded; [`CheckpointError::Io`].
pub fn newest_good(fs: &dyn FileSystem, run: &Path, options: &LoadOptions<'_>) -> Result<Newest> {
    newest_good_into(fs, run, options, &NamedTensor::begin)
}

/// [`newest_good`], but `begin` says what takes each tensor of the model.
///
/// # Errors
/// As [`newest_good`].
pub fn newest_good_into<T: Sink>(
    fs: &dyn FileSystem,
    run: &Path,
    options: &LoadOptions<'_>,
    begin: Begin<'_, T>,
) -> Result<Newest<T>> {
    let (loaded, refused) = newest(fs, run, &|path| {
        let loaded = load_into(fs, path, options, begin)?;
        Ok((loaded.step, loaded))
    })?;
    Ok(Newest { loaded, refused })
}

/// The newest checkpoint of a run with a good manifest and config.json, and the latter: no tensor is read.
///
/// # Errors
/// As [`newest_good`].
pub fn newest_described(fs: &dyn FileSystem, run: &Path) -> Result<(PathBuf, serde_json::Value)> {
    let found = newest(fs, run, &|path| {
        let checkpoint = Checkpoint::open(fs, path)?;
        Ok((checkpoint.step(), (path.to_path_buf(), checkpoint.config()?)))
    })?;
    Ok(found.0)
}

/// The newest checkpoint that `read` does not refuse and that is of the step of its name; newer ones are refused.
fn newest<T>(
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
            Some(Entry::Final(step)) => found.push((step, true, name)),
            Some(Entry::Replaced(step)) => found.push((step, false, name)),
            Some(Entry::Temporary) | None => {}
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
            Ok((of, found)) if of == step => return Ok((found, refused)),
            Ok((of, _)) => {
                let (file, what) = (path.join(super::manifest::NAME), "step");
                let (want, got) = (step.to_string(), of.to_string());
                refused.push(Refused { path, why: CheckpointError::Inconsistent { file, what, want, got } });
            }
            Err(why) => refused.push(Refused { path, why }),
        }
    }
    Err(CheckpointError::NoneGood { path: run.into(), refused })
}

/// The directory of a step.
fn step_name(step: u64) -> String {
    format!("step_{step:06}")
}

/// What a name below `checkpoints` stands for; none if it is nothing of ours.
fn entry(name: &str) -> Option<Entry> {
    let (base, suffix) = match name.split_once('.') {
        Some((base, suffix)) => (base, Some(suffix)),
        None => (name, None),
    };
    let step: u64 = base.strip_prefix("step_")?.parse().ok()?;
    if step_name(step) != base {
        return None;
    }
    let Some(suffix) = suffix else { return Some(Entry::Final(step)) };
    let (kind, process) = suffix.split_once('-')?;
    process.parse::<u32>().ok()?;
    match kind {
        "tmp" => Some(Entry::Temporary),
        "old" => Some(Entry::Replaced(step)),
        _ => None,
    }
}

/// `path` with this process's mark.
fn suffixed(path: &Path, kind: &str) -> PathBuf {
    let mut name = path.file_name().expect("a step has a name").to_owned();
    name.push(format!(".{kind}-{}", std::process::id()));
    path.with_file_name(name)
}

/// Creates a directory where it is missing, and makes its name durable.
fn ensure_dir(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
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
    }
    sync_dir(fs, parent)
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    fs.sync_dir(dir).map_err(CheckpointError::io("sync", dir))
}

/// Renames within a directory.
fn rename(fs: &dyn FileSystem, from: &Path, to: &Path) -> Result<()> {
    fs.rename(from, to).map_err(CheckpointError::io("rename", from))
}

/// The names in a directory.
fn list(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<String>> {
    fs.list(dir).map_err(CheckpointError::io("list", dir))
}

/// Removes a file, or a directory with all that is in it, if it is there. Links are removed, not followed.
fn remove_tree(fs: &dyn FileSystem, path: &Path) -> Result<()> {
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
