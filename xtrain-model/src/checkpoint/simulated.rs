//! A file system in memory that loses power, runs out of space and reports errors on demand.
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard};

use super::fs::{FileSystem, Kind, Lock, ReadFile, WriteFile};

/// An error that is reported instead of doing what was asked. Calls count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Injected {
    /// One call fails, with no effect but half of the bytes of a write.
    Once(u64, ErrorKind),
    /// From this call on nothing can be created, written or synced; removing and reading still work.
    DiskFull(u64),
}

/// The number of a file or directory.
type Id = usize;
/// What one call changes in a directory: names, and what they stand for afterwards. All or none of it
/// survives a power cut.
type Change = Vec<(String, Option<Id>)>;
/// The names in a directory.
type Names = BTreeMap<String, Id>;

/// A file or a directory: as programs see it, as it was last synced, and the calls in between.
#[derive(Debug, Clone)]
enum Node {
    File { live: Arc<Vec<u8>>, durable: usize, pending: Vec<usize> },
    Directory { live: Names, durable: Names, pending: Vec<Change> },
}

/// All of the file system.
#[derive(Debug, Clone)]
struct Disk {
    nodes: Vec<Node>,
    calls: u64,
    injected: Option<Injected>,
    locks: Vec<Id>,
    history: Option<Vec<Disk>>,
}

/// The root directory.
const ROOT: Id = 0;

/// A file system in memory. Unsynced bytes and names may be lost, kept or torn by [`SimulatedFs::power_cut`],
/// each for itself; what was synced survives. A clone is another handle on the same disk.
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
        })
    }
}

impl SimulatedFs {
    fn from_disk(disk: Disk) -> SimulatedFs {
        SimulatedFs(Arc::new(Mutex::new(disk)))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no call panics while it holds the disk")
    }

    /// Plans an error.
    pub fn inject(&self, error: Option<Injected>) {
        self.disk().injected = error;
    }

    /// The calls made so far.
    pub fn calls(&self) -> u64 {
        self.disk().calls
    }

    /// Begins to remember the disk before each call that changes it.
    pub fn remember(&self) {
        self.disk().history = Some(Vec::new());
    }

    /// The disks remembered, each as a file system of its own: what a process that is killed there leaves.
    pub fn remembered(&self) -> Vec<SimulatedFs> {
        self.disk().history.iter().flatten().cloned().map(SimulatedFs::from_disk).collect()
    }

    /// A copy on a disk of its own, with no lock held.
    pub fn fork(&self) -> SimulatedFs {
        let disk = self.disk();
        let (nodes, calls) = (disk.nodes.clone(), disk.calls);
        SimulatedFs::from_disk(Disk { nodes, calls, injected: None, locks: Vec::new(), history: None })
    }

    /// What a power cut may leave. `choose(n)` decides among n possibilities: whether a name survives, and
    /// whether an unsynced write survives whole, in part, as zeros or not at all.
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

    /// Changes the bytes of a file behind everybody's back.
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

    /// A number for everything that can be seen of the disk: equal disks have equal numbers.
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

/// The bytes of a file after a power cut: what was synced, and of each later write what `choose` leaves.
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

/// The names that lead to `path` from the root.
fn steps(path: &Path) -> impl Iterator<Item = &str> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    })
}

impl Disk {
    /// Counts a call, remembers the disk if it `changes`, and reports the planned error.
    fn call(&mut self, does: Does) -> io::Result<()> {
        let at = self.calls;
        self.calls += 1;
        if does != Does::Read
            && let Some(mut history) = self.history.take()
        {
            history.push(Disk { locks: Vec::new(), ..self.clone() });
            self.history = Some(history);
        }
        match self.injected {
            Some(Injected::Once(planned, kind)) if planned == at => Err(kind.into()),
            Some(Injected::DiskFull(from)) if at >= from && does == Does::Grow => {
                Err(ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
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

    /// Adds a node under a name that must be free.
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

    /// Whether a directory still has names in it.
    fn is_full(&self, id: Id) -> bool {
        matches!(&self.nodes[id], Node::Directory { live, .. } if !live.is_empty())
    }
}

/// What a call needs of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// Nothing.
    Read,
    /// New space.
    Grow,
    /// A change that needs no space.
    Change,
}

struct Handle {
    fs: SimulatedFs,
    id: Id,
}

struct Reading {
    bytes: Arc<Vec<u8>>,
    at: usize,
    fs: SimulatedFs,
}

struct Held {
    fs: SimulatedFs,
    id: Id,
}

impl Lock for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        if let Ok(mut disk) = self.fs.0.lock() {
            disk.locks.retain(|id| *id != self.id);
        }
    }
}

impl FileSystem for SimulatedFs {
    fn kind(&self, path: &Path) -> io::Result<Kind> {
        let mut disk = self.disk();
        disk.call(Does::Read)?;
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
        disk.call(Does::Read)?;
        let id = disk.find(dir)?;
        match &disk.nodes[id] {
            Node::Directory { live, .. } => Ok(live.keys().cloned().collect()),
            Node::File { .. } => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let mut disk = self.disk();
        disk.call(Does::Read)?;
        let id = disk.find(path)?;
        match &disk.nodes[id] {
            Node::File { live, .. } => Ok(Box::new(Reading { bytes: live.clone(), at: 0, fs: self.clone() })),
            Node::Directory { .. } => Err(ErrorKind::IsADirectory.into()),
        }
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call(Does::Grow)?;
        let node = Node::Directory { live: Names::new(), durable: Names::new(), pending: Vec::new() };
        disk.add(dir, node).map(drop)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let mut disk = self.disk();
        disk.call(Does::Grow)?;
        let id = disk.add(path, Node::File { live: Arc::default(), durable: 0, pending: Vec::new() })?;
        Ok(Box::new(Handle { fs: self.clone(), id }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call(Does::Change)?;
        let id = disk.find(from)?;
        let ((directory, old), (other, new)) = (disk.parent(from)?, disk.parent(to)?);
        if directory != other {
            return Err(ErrorKind::Unsupported.into());
        }
        if disk.find(to).is_ok_and(|id| disk.is_full(id)) {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        disk.change(directory, vec![(old.to_owned(), None), (new.to_owned(), Some(id))])
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call(Does::Grow)?;
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
        disk.call(Does::Change)?;
        disk.find(path)?;
        let (directory, name) = disk.parent(path)?;
        disk.change(directory, vec![(name.to_owned(), None)])
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.call(Does::Change)?;
        let id = disk.find(dir)?;
        if disk.is_full(id) {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        let (directory, name) = disk.parent(dir)?;
        disk.change(directory, vec![(name.to_owned(), None)])
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let mut disk = self.disk();
        disk.call(Does::Grow)?;
        let id = match disk.find(path) {
            Ok(id) => id,
            Err(_) => disk.add(path, Node::File { live: Arc::default(), durable: 0, pending: Vec::new() })?,
        };
        if disk.locks.contains(&id) {
            return Err(ErrorKind::WouldBlock.into());
        }
        disk.locks.push(id);
        Ok(Box::new(Held { fs: self.clone(), id }))
    }
}

impl ReadFile for Reading {
    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.fs.disk().call(Does::Read)?;
        let found = self.bytes.get(self.at..self.at + buffer.len()).ok_or(ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(found);
        self.at += buffer.len();
        Ok(())
    }
}

impl WriteFile for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let done = disk.call(Does::Grow);
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
        disk.call(Does::Grow)?;
        if let Node::File { live, durable, pending } = &mut disk.nodes[self.id] {
            *durable = live.len();
            pending.clear();
        }
        Ok(())
    }
}
