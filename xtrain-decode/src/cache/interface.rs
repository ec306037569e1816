//! The cache trait.
use std::fmt::Debug;
use std::ops::Range;

use xtrain_model::{Eager, KvStore, Result};

use super::kind::KvKind;
use super::kv_rows::KvRows;
use super::kv_snapshot::{HeldRows, KvSnapshot};
use super::memory::KvMemory;
use super::shape::CacheShape;

/// The keys and values of many sequences, for forward passes without a tape.
///
/// A forward pass extends layer 0, then layer 1, and so on, with the same rows. On every layer the position of each
/// row must follow the positions that its sequence holds. A pass that fails leaves every layer as it was: the rows
/// count once the last layer has them.
pub trait Cache: KvStore<Eager> + Debug + Send {
    /// The kind of this cache.
    fn kind(&self) -> KvKind;

    /// The shape of one position.
    fn shape(&self) -> &CacheShape;

    /// Number of positions of `seq` that every layer holds. 0 for a sequence that does not exist.
    fn seq_len(&self, seq: u32) -> usize;

    /// Slots in use and bytes moved.
    fn usage(&self) -> Usage;

    /// Bytes of the tensors that hold keys and values: slots x bytes per token, without layers that are offloaded.
    fn bytes(&self) -> usize;

    /// Reserves room for the positions of `seq` below `len`.
    ///
    /// # Errors
    /// [`Error::CacheFull`](xtrain_model::Error::CacheFull) with the first position that does not fit. Nothing has
    /// changed then.
    fn reserve(&mut self, seq: u32, len: usize) -> Result<()>;

    /// Number of positions that sequences can still get, those of kept prefixes that no sequence holds included.
    /// `usize::MAX`: not known.
    fn available(&self) -> usize {
        usize::MAX
    }

    /// Number of available positions, in whole pages, that room for the positions of `seq` below `len` takes. A page
    /// that `seq` shares and writes to counts in full. 0: not known.
    fn missing(&self, seq: u32, len: usize) -> usize {
        let _ = (seq, len);
        0
    }

    /// Allocates `pages` pages, or as many as the cache may have, so that it does not have to grow. Only a paged
    /// cache grows.
    ///
    /// # Errors
    /// If the device has no memory for them.
    fn expect(&mut self, pages: usize) -> Result<()> {
        let _ = pages;
        Ok(())
    }

    /// Ends the cache and returns its memory for a later one. Empty if the cache has none to pass on.
    fn into_memory(self: Box<Self>) -> KvMemory {
        KvMemory::default()
    }

    /// The slot of a reserved position, in every layer. `None`: the slot is known only when the row is written.
    fn slot(&self, seq: u32, pos: usize) -> Option<u32> {
        let _ = (seq, pos);
        None
    }

    /// Removes everything that `seq` holds and frees its room.
    fn free(&mut self, seq: u32) {
        // the only error is a sequence that does not exist, which holds nothing
        let _ = self.rewind(Snapshot { seq, len: 0 });
    }

    /// Replaces the content of `to` with the first `len` positions of `from`, shared or copied.
    ///
    /// # Errors
    /// [`Error::CachePosition`](xtrain_model::Error::CachePosition) unless [`Cache::can_rewind`] for `from`;
    /// [`Error::CacheFull`](xtrain_model::Error::CacheFull) if `to` does not exist or does not fit.
    fn fork(&mut self, from: u32, to: u32, len: usize) -> Result<()>;

    /// Whether the cache has all rows that the row after the first `len` positions of `seq` attends to. A sinks cache
    /// overwrites rows; the others have them up to the length of the sequence.
    fn can_rewind(&self, seq: u32, len: usize) -> bool {
        len <= self.seq_len(seq)
    }

    /// Removes the positions of a sequence from `mark.len` on.
    ///
    /// # Errors
    /// [`Error::CachePosition`](xtrain_model::Error::CachePosition) unless [`Cache::can_rewind`].
    fn rewind(&mut self, mark: Snapshot) -> Result<()>;

    /// A copy of the keys and values of `positions` of `seq`, on the device of the cache.
    ///
    /// # Errors
    /// [`Error::CachePosition`](xtrain_model::Error::CachePosition) if it holds fewer positions;
    /// [`Error::Tensor`](xtrain_model::Error::Tensor) for a sinks cache, and if the device has no memory for the copy.
    fn read_rows(&mut self, seq: u32, positions: Range<usize>) -> Result<KvRows>;

    /// Extends `seq` to `len` positions with copies of `rows`. Does nothing if it holds as many or more.
    ///
    /// # Errors
    /// [`Error::CachePosition`](xtrain_model::Error::CachePosition) unless `rows` has all positions from the length of
    /// `seq` to `len`; [`Error::CacheFull`](xtrain_model::Error::CacheFull) if they do not fit; a shape or dtype other
    /// than those of the cache; a sinks cache. The sequence holds the same positions as before then.
    fn write_rows(&mut self, seq: u32, rows: &KvRows, len: usize) -> Result<()>;

    /// Holds the first `len` positions of `seq` until [`Cache::release`], whatever becomes of `seq`.
    ///
    /// # Errors
    /// As [`Cache::read_rows`].
    fn snapshot(&mut self, seq: u32, len: usize) -> Result<KvSnapshot> {
        Ok(KvSnapshot { len, held: HeldRows::Copied(self.read_rows(seq, 0..len)?) })
    }

    /// Replaces the content of `to` with the first `len` positions of `snapshot`, shared or copied.
    ///
    /// # Errors
    /// [`Error::CachePosition`](xtrain_model::Error::CachePosition) if the snapshot holds fewer positions or is that of
    /// another cache; [`Error::CacheFull`](xtrain_model::Error::CacheFull) if `to` does not exist or does not fit.
    fn restore(&mut self, snapshot: &KvSnapshot, to: u32, len: usize) -> Result<()> {
        let HeldRows::Copied(rows) = &snapshot.held else { return Err(snapshot.missing(to, len)) };
        if len > snapshot.len {
            return Err(snapshot.missing(to, len));
        }
        self.free(to);
        self.write_rows(to, rows, len)
    }

    /// A copy of the keys and values of a snapshot, on the device of the cache.
    ///
    /// # Errors
    /// [`Error::CachePosition`](xtrain_model::Error::CachePosition) if the snapshot is that of another cache; if the
    /// device has no memory for the copy.
    fn read_snapshot(&mut self, snapshot: &KvSnapshot) -> Result<KvRows> {
        match &snapshot.held {
            HeldRows::Copied(rows) => Ok(rows.clone()),
            HeldRows::Pages { .. } => Err(snapshot.missing(0, snapshot.len)),
        }
    }

    /// Ends a snapshot and frees the rows that no sequence holds.
    fn release(&mut self, snapshot: KvSnapshot) {
        drop(snapshot);
    }

    /// Keeps the full pages of `seq`, whose first tokens are `tokens`, for later sequences, even after `seq` is
    /// freed. They are evicted when no other page is free. Only a paged cache keeps prefixes.
    fn insert_prefix(&mut self, seq: u32, tokens: &[u32]) {
        let _ = (seq, tokens);
    }

    /// Fills the empty sequence `seq` with the longest kept prefix of `tokens`. Returns the length of the prefix.
    fn match_prefix(&mut self, seq: u32, tokens: &[u32]) -> usize {
        let _ = (seq, tokens);
        0
    }
}

/// A length of a sequence, to rewind to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// The sequence.
    pub seq: u32,
    /// Number of positions.
    pub len: usize,
}

/// KV slots, each with room for one position in every layer, and the bytes moved into them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Allocated slots.
    pub slots: usize,
    /// Slots that sequences hold or that keep a prefix. A shared slot counts once.
    pub in_use: usize,
    /// Positions that are held, of all sequences together. A shared position counts for each sequence.
    pub positions: usize,
    /// Bytes written for new rows: rows x bytes per token.
    pub written: u64,
    /// Bytes copied from slot to slot: growth, forks, copies on write.
    pub copied: u64,
    /// Pages that were kept as prefixes and given to other sequences.
    pub evicted: u64,
}
