//! An in-memory file system that simulates power failures, a full disk and I/O errors.
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use super::fs::{FileSystem, Kind, Lock, ReadFile, WriteFile};

/// An injected error. Calls are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Injected {
    /// One call fails. Its only effect is half of the bytes of a write.
    Once(u64, ErrorKind),
    /// From this call on, creating, writing and syncing fail. Removing and reading still work.
    DiskFull(u64),
}

/// The index of a file or directory.
type Id = usize;
/// The change of one call to a directory: names and their new values. A power failure keeps all or none of it.
type Change = Vec<(String, Option<Id>)>;
/// The names in a directory.
type Names = BTreeMap<String, Id>;

/// A file or a directory: its current state, its last synced state and the calls in between.
#[derive(Debug, Clone)]
enum Node {
    File { live: Arc<Vec<u8>>, durable: usize, pending: Vec<usize> },
    Directory { live: Names, durable: Names, pending: Vec<Change> },
}

/// The state of the file system.
#[derive(Debug, Clone)]
struct Disk {
    nodes: Vec<Node>,
    calls: u64,
    injected: Option<Injected>,
    locks: Vec<Id>,
    history: Option<Vec<Disk>>,
    operations: Option<Vec<String>>,
}

/// The root directory.
const ROOT: Id = 0;

/// An in-memory file system. [`SimulatedFs::power_cut`] may lose, keep or tear each unsynced write and name
/// independently. Synced data survives. A clone is another handle to the same disk.
#[derive(Debug, Clone)]
pub struct SimulatedFs(Arc<Mutex<Disk>>);

impl Default for SimulatedFs {
    fn default() -> SimulatedFs {
        let names = Names::new();
        let root = Node::Directory { live: names.clone(), durable: names, pending: Vec::new() };
        SimulatedFs::from_disk(Disk {
            nodes: vec![root],
            calls: 0,
            injected: None,
            locks: Vec::new(),
            history: None,
            operations: None,
        })
    }
}

impl SimulatedFs {
    fn from_disk(disk: Disk) -> SimulatedFs {
        SimulatedFs(Arc::new(Mutex::new(disk)))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no call panics while it holds the lock")
    }

    /// Sets the error to inject. `None`: no error.
    pub fn inject(&self, error: Option<Injected>) {
        self.disk().injected = error;
    }

    /// Number of calls so far.
    pub fn calls(&self) -> u64 {
        self.disk().calls
    }

    /// Starts to record the disk before each call that changes it.
    pub fn start_history(&self) {
        self.disk().history = Some(Vec::new());
    }

    /// Starts to record the operations that change the disk.
    pub fn start_operations(&self) {
        self.disk().operations = Some(Vec::new());
    }

    /// The recorded operations, each the name of the system call and its paths from the root.
    pub fn operations(&self) -> Vec<String> {
        self.disk().operations.clone().unwrap_or_default()
    }

    /// The recorded disks, each as a separate file system: the state that a process killed at that point leaves.
    pub fn history(&self) -> Vec<SimulatedFs> {
        self.disk().history.iter().flatten().cloned().map(SimulatedFs::from_disk).collect()
    }

    /// An independent copy without locks.
    #[must_use]
    pub fn fork(&self) -> SimulatedFs {
        let disk = self.disk();
        let (nodes, calls) = (disk.nodes.clone(), disk.calls);
        SimulatedFs::from_disk(Disk {
            nodes,
            calls,
            injected: None,
            locks: Vec::new(),
            history: None,
            operations: None,
        })
    }

    /// A possible state after a power failure. `choose(n)` picks one of n outcomes: whether a name survives, and
    /// whether an unsynced write survives completely, in part, as zeros or not at all.
    #[must_use]
    pub fn power_cut(&self, choose: &mut dyn FnMut(usize) -> usize) -> SimulatedFs {
        let after = self.fork();
        for node in &mut after.disk().nodes {
            match node {
                Node::File { live, durable, pending } => {
                    if !pending.is_empty() {
                        let kept = survivors(live, *durable, pending, choose);
                        *live = Arc::new(kept);
                    }
                    *durable = live.len();
                    pending.clear();
                }
                Node::Directory { live, durable, pending } => {
                    for change in pending.drain(..) {
                        if choose(2) == 1 {
                            apply(durable, change);
                        }
                    }
                    live.clone_from(durable);
                }
            }
        }
        after
    }

    /// Changes the bytes of a file without counting a call.
    ///
    /// # Errors
    /// `NotFound` if there is no such file.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut disk = self.disk();
        let id = disk.find(path)?;
        match &mut disk.nodes[id] {
            Node::File { live, .. } => change(Arc::make_mut(live)),
            Node::Directory { .. } => return Err(ErrorKind::IsADirectory.into()),
        }
        Ok(())
    }

    /// A hash of the visible state of the disk. Equal disks have equal hashes.
    pub fn digest(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        fn walk(disk: &Disk, id: Id, hasher: &mut DefaultHasher) {
            match &disk.nodes[id] {
                Node::File { live, .. } => live.hash(hasher),
                Node::Directory { live, .. } => {
                    for (name, id) in live {
                        name.hash(hasher);
                        walk(disk, *id, hasher);
                    }
                    usize::MAX.hash(hasher);
                }
            }
        }
        let mut hasher = DefaultHasher::new();
        walk(&self.disk(), ROOT, &mut hasher);
        hasher.finish()
    }
}

/// The bytes of a file after a power failure: the synced bytes, and the part of each later write that `choose` keeps.
fn survivors(
    live: &[u8],
    durable: usize,
    pending: &[usize],
    choose: &mut dyn FnMut(usize) -> usize,
) -> Vec<u8> {
    let mut kept = live[..durable].to_vec();
    let mut begin = durable;
    for &end in pending {
        let bytes = &live[begin..end];
        let survives = match choose(4) {
            0 => bytes.len(),
            1 => choose(bytes.len() + 1),
            2 => {
                kept.resize(end, 0);
                0
            }
            _ => 0,
        };
        if survives > 0 {
            kept.resize(kept.len().max(begin), 0);
            kept.truncate(begin);
            kept.extend_from_slice(&bytes[..survives]);
        }
        begin = end;
    }
    kept
}

/// Applies one change to the names of a directory.
fn apply(names: &mut Names, change: Change) {
    for (name, id) in change {
        match id {
            Some(id) => names.insert(name, id),
            None => names.remove(&name),
        };
    }
}

/// The components of `path` from the root.
fn steps(path: &Path) -> impl Iterator<Item = &str> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    })
}

impl Disk {
    /// Counts a call, records the disk before a change, and returns the injected error.
    fn call(&mut self, kind: CallKind) -> io::Result<()> {
        let at = self.calls;
        self.calls += 1;
        if kind != CallKind::Read
            && let Some(mut history) = self.history.take()
        {
            history.push(Disk { locks: Vec::new(), ..self.clone() });
            self.history = Some(history);
        }
        match self.injected {
            Some(Injected::Once(planned, error)) if planned == at => Err(error.into()),
            Some(Injected::DiskFull(from)) if at >= from && kind == CallKind::Grow => {
                Err(ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    /// Records a system call.
    fn record(&mut self, name: &str, paths: &[&Path]) {
        if let Some(operations) = &mut self.operations {
            let from_root = |path: &&Path| format!(" {}", steps(path).collect::<Vec<_>>().join("/"));
            operations.push(name.to_owned() + &paths.iter().map(from_root).collect::<String>());
        }
    }

    fn find(&self, path: &Path) -> io::Result<Id> {
        steps(path).try_fold(ROOT, |id, name| match &self.nodes[id] {
            Node::Directory { live, .. } => live.get(name).copied().ok_or(ErrorKind::NotFound.into()),
            Node::File { .. } => Err(ErrorKind::NotADirectory.into()),
        })
    }

    /// The directory that holds `path`, and the name there.
    fn parent<'a>(&self, path: &'a Path) -> io::Result<(Id, &'a str)> {
        let name = steps(path).last().ok_or(ErrorKind::InvalidInput)?;
        Ok((self.find(path.parent().unwrap_or(Path::new("")))?, name))
    }

    fn change(&mut self, directory: Id, change: Change) -> io::Result<()> {
        match &mut self.nodes[directory] {
            Node::Directory { live, pending, .. } => {
                apply(live, change.clone());
                pending.push(change);
                Ok(())
            }
            Node::File { .. } => Err(ErrorKind::NotADirectory.into()),
        }
    }

    /// Adds a node under a name that must not exist.
    fn add(&mut self, path: &Path, node: Node) -> io::Result<Id> {
        let (directory, name) = self.parent(path)?;
        if self.find(path).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let id = self.nodes.len();
        self.nodes.push(node);
        self.change(directory, vec![(name.to_owned(), Some(id))])?;
        Ok(id)
    }

    /// Whether a node is a non-empty directory.
    fn has_entries(&self, id: Id) -> bool {
        matches!(&self.nodes[id], Node::Directory { live, .. } if !live.is_empty())
    }
}

/// The effect of a call on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    /// No change.
    Read,
    /// A change that needs space.
    Grow,
    /// A change that needs no space.
    Change,
}

struct SimulatedWriter {
    fs: SimulatedFs,
    id: Id,
    path: PathBuf,
}

struct SimulatedReader {
    bytes: Arc<Vec<u8>>,
    at: usize,
    fs: SimulatedFs,
}

struct SimulatedLock {
    fs: SimulatedFs,
    id: Id,
}

impl Lock for SimulatedLock {}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        if let Ok(mut disk) = self.fs.0.lock() {
            disk.locks.retain(|id| *id != self.id);
        }
    }
}

impl FileSystem for SimulatedFs {
    fn kind(&self, path: &Path) -> io::Result<Kind> {
        let mut disk = self.disk();
        disk.call(CallKind::Read)?;
        match disk.find(path) {
            Ok(id) => Ok(match disk.nodes[id] {
                Node::File { .. } => Kind::File,
                Node::Directory { .. } => Kind::Directory,
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Kind::Missing),
            Err(error) => Err(error),
        }
    }

    fn kind_unfollowed(&self, path: &Path) -> io::Result<Kind> {
        self.kind(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut disk = self.disk();
        disk.call(CallKind::Read)?;
        let id = disk.find(dir)?;
        match &disk.nodes[id] {
            Node::Directory { live, .. } => Ok(live.keys().cloned().collect()),
            Node::File { .. } => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let mut disk = self.disk();
        disk.call(CallKind::Read)?;
        let id = disk.find(path)?;
        match &disk.nodes[id] {
            Node::File { live, .. } => {
                Ok(Box::new(SimulatedReader { bytes: live.clone(), at: 0, fs: self.clone() }))
            }
            Node::Directory { .. } => Err(ErrorKind::IsADirectory.into()),
        }
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call(CallKind::Grow)?;
        disk.record("mkdir", &[dir]);
        let node = Node::Directory { live: Names::new(), durable: Names::new(), pending: Vec::new() };
        disk.add(dir, node).map(drop)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let mut disk = self.disk();
        disk.call(CallKind::Grow)?;
        let id = disk.add(path, Node::File { live: Arc::default(), durable: 0, pending: Vec::new() })?;
        Ok(Box::new(SimulatedWriter { fs: self.clone(), id, path: path.to_path_buf() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call(CallKind::Change)?;
        disk.record("rename", &[from, to]);
        let id = disk.find(from)?;
        let ((directory, old), (other, new)) = (disk.parent(from)?, disk.parent(to)?);
        if directory != other {
            return Err(ErrorKind::Unsupported.into());
        }
        if disk.find(to).is_ok_and(|id| disk.has_entries(id)) {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        disk.change(directory, vec![(old.to_owned(), None), (new.to_owned(), Some(id))])
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call(CallKind::Grow)?;
        disk.record("fsync", &[dir]);
        let id = disk.find(dir)?;
        match &mut disk.nodes[id] {
            Node::Directory { live, durable, pending } => {
                durable.clone_from(live);
                pending.clear();
                Ok(())
            }
            Node::File { .. } => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call(CallKind::Change)?;
        disk.record("unlink", &[path]);
        disk.find(path)?;
        let (directory, name) = disk.parent(path)?;
        disk.change(directory, vec![(name.to_owned(), None)])
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call(CallKind::Change)?;
        disk.record("rmdir", &[dir]);
        let id = disk.find(dir)?;
        if disk.has_entries(id) {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        let (directory, name) = disk.parent(dir)?;
        disk.change(directory, vec![(name.to_owned(), None)])
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let mut disk = self.disk();
        disk.call(CallKind::Grow)?;
        let id = match disk.find(path) {
            Ok(id) => id,
            Err(_) => disk.add(path, Node::File { live: Arc::default(), durable: 0, pending: Vec::new() })?,
        };
        if disk.locks.contains(&id) {
            return Err(ErrorKind::WouldBlock.into());
        }
        disk.locks.push(id);
        Ok(Box::new(SimulatedLock { fs: self.clone(), id }))
    }
}

impl ReadFile for SimulatedReader {
    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.fs.disk().call(CallKind::Read)?;
        let found = self.bytes.get(self.at..self.at + buffer.len()).ok_or(ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(found);
        self.at += buffer.len();
        Ok(())
    }
}

impl WriteFile for SimulatedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let done = disk.call(CallKind::Grow);
        disk.record("write", &[&self.path]);
        let written = if done.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        if let Node::File { live, pending, .. } = &mut disk.nodes[self.id] {
            Arc::make_mut(live).extend_from_slice(written);
            let end = live.len();
            pending.push(end);
        }
        done
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut disk = self.fs.disk();
        disk.call(CallKind::Grow)?;
        disk.record("fsync", &[&self.path]);
        if let Node::File { live, durable, pending } = &mut disk.nodes[self.id] {
            *durable = live.len();
            pending.clear();
        }
        Ok(())
    }
}
