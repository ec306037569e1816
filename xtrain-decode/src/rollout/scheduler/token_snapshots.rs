//! The snapshots of an engine and their tokens.
use std::collections::BTreeMap;

use xtrain_tensor::faults::{self, Fault};

use crate::cache::KvSnapshot;

/// A snapshot of an engine; see [`Engine::snapshot`](crate::Engine::snapshot).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(u64);

/// The snapshots of an engine.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    all: BTreeMap<SnapshotId, TokenSnapshot>,
    /// Snapshots so far.
    taken: u64,
}

/// The rows of `tokens`.
#[derive(Debug)]
pub(super) struct TokenSnapshot {
    pub(super) tokens: Vec<u32>,
    pub(super) rows: KvSnapshot,
}

impl Snapshots {
    pub(super) fn insert(&mut self, snapshot: TokenSnapshot) -> SnapshotId {
        let id = SnapshotId(self.taken);
        self.taken += 1;
        self.all.insert(id, snapshot);
        id
    }

    pub(super) fn get(&self, id: SnapshotId) -> Option<&TokenSnapshot> {
        self.all.get(&id)
    }

    pub(super) fn remove(&mut self, id: SnapshotId) -> Option<TokenSnapshot> {
        self.all.remove(&id)
    }

    /// The snapshot that begins with the most tokens of `tokens`, and their number.
    pub(super) fn longest(&self, tokens: &[u32]) -> Option<(&KvSnapshot, usize)> {
        let any = faults::on(Fault::SnapshotTokensNotCompared);
        let common =
            |own: &[u32]| own.iter().zip(tokens).take_while(|(own, other)| any || own == other).count();
        self.all.values().map(|snapshot| (&snapshot.rows, common(&snapshot.tokens))).max_by_key(|(_, n)| *n)
    }
}
