//! The kinds of cache by name, and the room of a cache.
use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// A kind of cache, as named by `--kv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvKind {
    /// No cache: every token recomputes its whole sequence.
    Off,
    /// One tensor per sequence and layer, concatenated at every step.
    Growing,
    /// One preallocated run of slots per sequence.
    Contiguous,
    /// Pages of a fixed number of positions, shared between completions of one prompt.
    Paged {
        /// Positions in a page, at least one.
        page: usize,
    },
}

/// The room of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Number of sequences, which are numbered from 0.
    pub sequences: usize,
    /// Positions of the longest sequence.
    pub positions: usize,
    /// Positions of all sequences together. `None`: `sequences` x `positions`.
    pub slots: Option<usize>,
}

impl KvKind {
    /// The default page size: the chunk of keys that attention reads at a time, so that a page is read in place.
    pub const PAGE: usize = 64;
}

impl Default for KvKind {
    fn default() -> KvKind {
        KvKind::Paged { page: KvKind::PAGE }
    }
}

impl fmt::Display for KvKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvKind::Off => f.pad("off"),
            KvKind::Growing => f.pad("growing"),
            KvKind::Contiguous => f.pad("contiguous"),
            KvKind::Paged { page } => f.pad(&format!("paged:{page}")),
        }
    }
}

impl FromStr for KvKind {
    type Err = Error;

    /// Parses `off`, `growing`, `contiguous`, `paged` (pages of 64 positions) or `paged:PAGE`.
    fn from_str(s: &str) -> Result<KvKind, Error> {
        const WANT: &str = "off, growing, contiguous, paged or paged:PAGE with a page of at least 1";
        let page = |s: &str| s.parse().ok().filter(|&page| page >= 1).map(|page| KvKind::Paged { page });
        let kind = match s {
            "off" => Some(KvKind::Off),
            "growing" => Some(KvKind::Growing),
            "contiguous" => Some(KvKind::Contiguous),
            "paged" => Some(KvKind::default()),
            _ => s.strip_prefix("paged:").and_then(page),
        };
        kind.ok_or_else(|| Error::Option { field: "kv", want: WANT, got: s.to_owned() })
    }
}
