//! Rows that outlive their sequence.
use std::sync::Arc;

use xtrain_model::Error;

use super::kv_rows::KvRows;

/// The keys and values of the first positions of a sequence, held until
/// [`Cache::release`](super::Cache::release). The sequence may continue, end or be freed meanwhile.
///
/// A paged cache holds references to the pages, which costs O(pages), and copies a page before a sequence writes to
/// it. Other caches hold a copy of the rows.
#[derive(Debug)]
#[must_use = "its rows are held until the cache releases it"]
pub struct KvSnapshot {
    pub(super) len: usize,
    pub(super) held: HeldRows,
}

/// How a snapshot holds its rows.
#[derive(Debug)]
pub(super) enum HeldRows {
    Copied(KvRows),
    /// One reference to each of `pages` of the cache `owner`.
    Pages {
        owner: Arc<()>,
        pages: Vec<u32>,
    },
}

impl KvSnapshot {
    /// Number of positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// It holds no position.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The error of a restore of `len` positions to `seq`, of which the cache has fewer in this snapshot.
    pub(super) fn missing(&self, seq: u32, len: usize) -> Error {
        Error::CachePosition { layer: 0, seq, want: self.len as u32, got: len as u32 }
    }
}
