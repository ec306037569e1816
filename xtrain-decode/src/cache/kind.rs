//! The kinds of cache by name, and the room of a cache.
use std::fmt;
use std::str::FromStr;

use xtrain_model::Config;

use crate::error::Error;

/// A kind of cache.
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
    /// The first positions of a sequence and a window of its last ones, in a constant number of slots. A sequence may
    /// be longer than the model's context. Lossy: a completion has the bits of
    /// [`generate_naive_sinks`](crate::generate_naive_sinks), not those of the training forward pass.
    Sinks {
        /// The first positions, which every later one attends to.
        sinks: usize,
        /// The last positions, that of the row itself included: at least one.
        window: usize,
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

    /// The default number of sinks.
    pub const SINKS: usize = 4;

    /// The default number of positions in the window of a sinks cache.
    pub const WINDOW: usize = 1020;

    /// Positions in a page. `None`: this kind has no pages.
    pub fn page(self) -> Option<usize> {
        match self {
            KvKind::Off | KvKind::Growing | KvKind::Contiguous | KvKind::Sinks { .. } => None,
            KvKind::Paged { page } | KvKind::Int8 { page } => Some(page),
        }
    }

    /// Whether the keys and values of all sequences are in one pool of slots, which keeps every position.
    pub(super) fn can_offload_layers(self) -> bool {
        self == KvKind::Contiguous || self.page().is_some()
    }

    /// Slots of a sequence of `len` positions: whole pages, or the sinks and the window, whatever the length.
    pub fn slots(self, len: usize) -> usize {
        match self {
            KvKind::Sinks { sinks, window } => sinks.saturating_add(window),
            _ => len.div_ceil(self.page().unwrap_or(1)).saturating_mul(self.page().unwrap_or(1)),
        }
    }

    /// Whether every position of a sequence is kept. Snapshots, speculation and several steps without a synchronization
    /// need it.
    pub fn keeps_all(self) -> bool {
        !matches!(self, KvKind::Sinks { .. })
    }

    /// Maximum number of positions of a sequence: that of the model, over a sinks cache 2^32 - 1.
    pub fn max_positions(self, cfg: &Config) -> usize {
        if self.keeps_all() { cfg.max_positions } else { u32::MAX as usize }
    }

    /// `cfg` with the maximum number of positions of a sequence over this kind of cache. Requests are checked against
    /// it.
    #[must_use]
    pub fn limits(self, cfg: &Config) -> Config {
        Config { max_positions: self.max_positions(cfg), ..cfg.clone() }
    }

    /// How many of the next `rows` rows of a sequence, from position `first` on, one pass of the engine runs. Over a
    /// sinks cache, the rows up to its number of slots read one list of keys; each later one needs its own, so they run
    /// one by one.
    pub(crate) fn rows_per_pass(self, first: usize, rows: usize) -> usize {
        match self {
            KvKind::Sinks { .. } => rows.min(self.slots(0).saturating_sub(first).max(1)),
            _ => rows,
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
        self.dtype() == KvDtype::Compute && self.keeps_all()
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
            KvKind::Sinks { sinks, window } => f.pad(&format!("sinks:{sinks}+{window}")),
        }
    }
}

impl FromStr for KvKind {
    type Err = Error;

    /// Parses `off`, `growing`, `contiguous`, `paged` and `int8` (pages of 64 positions), `paged:PAGE`, `int8:PAGE`, or
    /// `sinks:SINKS+WINDOW`.
    fn from_str(s: &str) -> Result<KvKind, Error> {
        const WANT: &str = "off, growing, contiguous, paged, int8, paged:PAGE or int8:PAGE with a page of at least 1, \
                            or sinks:SINKS+WINDOW with a window of at least 1";
        if let Some((sinks, window)) = s.strip_prefix("sinks:").and_then(|sizes| sizes.split_once('+'))
            && let (Ok(sinks), Ok(window @ 1..)) = (sinks.parse(), window.parse())
        {
            return Ok(KvKind::Sinks { sinks, window });
        }
        let (kind, page) = s.split_once(':').map_or((s, None), |(kind, page)| (kind, Some(page)));
        let page = page.map_or(Some(KvKind::PAGE), |page| page.parse().ok().filter(|&page| page >= 1));
        let kind = match (kind, page) {
            ("paged", Some(page)) => Some(KvKind::Paged { page }),
            ("int8", Some(page)) => Some(KvKind::Int8 { page }),
            _ => [KvKind::Off, KvKind::Growing, KvKind::Contiguous].into_iter().find(|k| k.to_string() == s),
        };
        kind.ok_or_else(|| Error::option("kv", WANT, s))
    }
}
