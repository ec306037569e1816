//! The kinds of cache by name, and how one is made.
use std::fmt;
use std::str::FromStr;

use xtrain_model::{Model, Result};

use super::{Cache, CacheShape, Contiguous, Growing, Paged};
use crate::error::Error;

/// A kind of cache, as `--kv` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvKind {
    /// None: every token recomputes its whole sequence.
    Off,
    /// Concatenation at every step.
    Growing,
    /// One preallocated run of slots for each sequence.
    Contiguous,
    /// Pages of so many positions, at least one, shared between completions of one prompt.
    Paged {
        /// Positions in a page.
        page: usize,
    },
}

/// What a cache has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Sequences, numbered from 0.
    pub sequences: usize,
    /// Positions of the longest sequence.
    pub positions: usize,
    /// Positions of all sequences together; none: `sequences` times `positions`.
    pub slots: Option<usize>,
}

impl KvKind {
    /// Positions in a page unless told otherwise: a chunk of attention, which is then read where it lies.
    pub const PAGE: usize = 64;

    /// An empty cache of this kind for `model`; none for [`KvKind::Off`]. A page of 0 counts as 1.
    ///
    /// # Errors
    /// When the device has no memory for it.
    pub fn cache(self, model: &Model, room: Room) -> Result<Option<Box<dyn Cache>>> {
        let shape = CacheShape::of(model);
        Ok(match self {
            KvKind::Off => None,
            KvKind::Growing => Some(Box::new(Growing::new(shape, room)?)),
            KvKind::Contiguous => Some(Box::new(Contiguous::new(shape, room)?)),
            KvKind::Paged { page } => Some(Box::new(Paged::new(shape, room, page.max(1))?)),
        })
    }
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

    /// `off`, `growing`, `contiguous`, `paged` (pages of 64) or `paged:PAGE`.
    fn from_str(s: &str) -> Result<KvKind, Error> {
        let page = |s: &str| s.parse().ok().filter(|&page| page >= 1).map(|page| KvKind::Paged { page });
        let kind = match s {
            "off" => Some(KvKind::Off),
            "growing" => Some(KvKind::Growing),
            "contiguous" => Some(KvKind::Contiguous),
            "paged" => Some(KvKind::default()),
            _ => s.strip_prefix("paged:").and_then(page),
        };
        const WANT: &str = "off, growing, contiguous, paged or paged:PAGE with a page of at least 1";
        kind.ok_or_else(|| Error::Option { field: "kv", want: WANT, got: s.to_owned() })
    }
}
