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
    /// Pages as [`KvKind::Paged`], in int8 with one scale for each head vector. Lossy: a completion has the bits of
    /// [`generate_naive_int8`](crate::generate_naive_int8), not those of the training forward pass.
    Int8 {
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

    /// Positions in a page. `None`: this kind has no pages.
    pub fn page(self) -> Option<usize> {
        match self {
            KvKind::Off | KvKind::Growing | KvKind::Contiguous => None,
            KvKind::Paged { page } | KvKind::Int8 { page } => Some(page),
        }
    }

    /// The type in which this kind stores keys and values.
    pub fn dtype(self) -> KvDtype {
        match self {
            KvKind::Int8 { .. } => KvDtype::Int8,
            _ => KvDtype::Compute,
        }
    }

    /// Whether logits have the bits of the training forward pass.
    pub fn is_exact(self) -> bool {
        self.dtype() == KvDtype::Compute
    }
}

/// The type in which a cache stores keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// The compute dtype of the model: exact.
    Compute,
    /// Int8 codes, and one f32 scale for each head vector: lossy.
    Int8,
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
            KvKind::Int8 { page } => f.pad(&format!("int8:{page}")),
        }
    }
}

impl FromStr for KvKind {
    type Err = Error;

    /// Parses `off`, `growing`, `contiguous`, `paged` and `int8` (pages of 64 positions), `paged:PAGE` or `int8:PAGE`.
    fn from_str(s: &str) -> Result<KvKind, Error> {
        const WANT: &str =
            "off, growing, contiguous, paged, int8, paged:PAGE or int8:PAGE with a page of at least 1";
        let (kind, page) = s.split_once(':').map_or((s, None), |(kind, page)| (kind, Some(page)));
        let page = page.map_or(Some(KvKind::PAGE), |page| page.parse().ok().filter(|&page| page >= 1));
        let kind = match (kind, page) {
            ("paged", Some(page)) => Some(KvKind::Paged { page }),
            ("int8", Some(page)) => Some(KvKind::Int8 { page }),
            _ => [KvKind::Off, KvKind::Growing, KvKind::Contiguous].into_iter().find(|k| k.to_string() == s),
        };
        kind.ok_or_else(|| Error::Option { field: "kv", want: WANT, got: s.to_owned() })
    }
}
