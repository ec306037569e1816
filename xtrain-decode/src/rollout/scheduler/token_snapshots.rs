//! The snapshots of an engine and their tokens.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use xtrain_tensor::faults::{self, Fault};

use crate::cache::KvSnapshot;

/// A snapshot of an engine; see [`Engine::snapshot`](crate::Engine::snapshot). Another engine does not accept it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId {
    /// The number of the engine in this process.
    engine: u64,
    /// The number of the snapshot in its engine.
    number: u64,
}

/// The number of the next engine.
static ENGINES: AtomicU64 = AtomicU64::new(0);

/// The snapshots of an engine.
#[derive(Debug)]
pub(super) struct Snapshots {
    engine: u64,
    /// By number.
    all: BTreeMap<u64, TokenSnapshot>,
    /// Snapshots so far.
    taken: u64,
}

impl Default for Snapshots {
    fn default() -> Snapshots {
        let engine = ENGINES.fetch_add(1, Ordering::Relaxed);
        Snapshots { engine, all: BTreeMap::new(), taken: 0 }
    }
}

/// The rows of `tokens`.
#[derive(Debug)]
pub(super) struct TokenSnapshot {
    pub(super) tokens: Vec<u32>,
    pub(super) rows: KvSnapshot,
}

impl Snapshots {
    pub(super) fn insert(&mut self, snapshot: TokenSnapshot) -> SnapshotId {
        let id = SnapshotId { engine: self.engine, number: self.taken };
        self.taken += 1;
        self.all.insert(id.number, snapshot);
        id
    }

    pub(super) fn get(&self, id: SnapshotId) -> Option<&TokenSnapshot> {
        self.own(id).and_then(|number| self.all.get(&number))
    }

    pub(super) fn remove(&mut self, id: SnapshotId) -> Option<TokenSnapshot> {
        self.own(id).and_then(|number| self.all.remove(&number))
    }

    /// The number of a snapshot of this engine.
    fn own(&self, id: SnapshotId) -> Option<u64> {
        let is_own = id.engine == self.engine || faults::on(Fault::SnapshotEngineNotCompared);
        is_own.then_some(id.number)
    }

    /// The snapshot that begins with the most tokens of `tokens`, and their number.
    pub(super) fn longest(&self, tokens: &[u32]) -> Option<(&KvSnapshot, usize)> {
        let any = faults::on(Fault::SnapshotTokensNotCompared);
        let common =
            |own: &[u32]| own.iter().zip(tokens).take_while(|(own, other)| any || own == other).count();
        self.all.values().map(|snapshot| (&snapshot.rows, common(&snapshot.tokens))).max_by_key(|(_, n)| *n)
    }
}
