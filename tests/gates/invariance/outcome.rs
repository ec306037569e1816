//! The result of a case: counts by kind, or the first difference.
use std::fmt;

use xtrain::decode::KvKind;
use xtrain::tensor::Dtype;

use super::case::{Case, Driver, SEED};

/// Cases and compared values by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[allow(missing_docs, reason = "each field counts the cases of its name")]
pub(crate) struct Counts {
    pub(crate) cases: usize,
    /// Compared rows of logits.
    pub(crate) rows: usize,
    /// Compared logits.
    pub(crate) values: usize,
    pub(crate) f32: usize,
    pub(crate) bf16: usize,
    pub(crate) growing: usize,
    pub(crate) contiguous: usize,
    /// With pages, in int8 too.
    pub(crate) paged: usize,
    pub(crate) int8: usize,
    /// Sinks and a window that do not hold the longest sequence.
    pub(crate) sinks: usize,
    /// Those that hold it.
    pub(crate) sinks_exact: usize,
    /// A sequence was computed in several passes.
    pub(crate) chunked: usize,
    /// Several sequences in one pass.
    pub(crate) mixed: usize,
    /// Rows of a prompt in the same pass as the single row of another sequence.
    pub(crate) prefill_with_decode: usize,
    pub(crate) threads: usize,
    /// Another instruction set than the oracle's.
    pub(crate) simd: usize,
    pub(crate) engine: usize,
    /// Cached positions were shared.
    pub(crate) shared: usize,
    /// Cached positions were lost and computed again.
    pub(crate) recomputed: usize,
    pub(crate) crosses_64: usize,
    pub(crate) crosses_256: usize,
    pub(crate) literal: usize,
    /// Some layer has a sliding window.
    pub(crate) windowed: usize,
    /// The cache offloads layers.
    pub(crate) offloaded: usize,
    /// A prompt began with kept pages, in an engine that evicted others.
    pub(crate) evicted: usize,
    /// A completion of a group was preempted.
    pub(crate) member: usize,
    /// Both.
    pub(crate) member_evicted: usize,
}

/// What happened while a case ran.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) rows: usize,
    pub(super) chunked: bool,
    pub(super) mixed: bool,
    pub(super) prefill_with_decode: bool,
    pub(super) shared: bool,
    pub(super) recomputed: bool,
    /// Rows of a completion of a group were computed again.
    pub(super) member_recomputed: bool,
    /// A prompt began with pages that the prefix cache had kept.
    pub(super) prefix_hit: bool,
    /// The prefix cache evicted a page.
    pub(super) evicted: bool,
}

impl Counts {
    /// The counts of one case.
    pub(super) fn of(case: &Case, seen: Seen) -> Counts {
        let n = usize::from;
        let crosses = |edge: usize| n(case.longest() > edge);
        Counts {
            cases: 1,
            rows: seen.rows,
            values: seen.rows * case.cfg.vocab,
            f32: n(case.dtype == Dtype::F32),
            bf16: n(case.dtype == Dtype::BF16),
            growing: n(case.kv == KvKind::Growing),
            contiguous: n(case.kv == KvKind::Contiguous),
            paged: n(case.kv.page().is_some()),
            int8: n(matches!(case.kv, KvKind::Int8 { .. })),
            sinks: n(!case.definition().keeps_all()),
            sinks_exact: n(case.definition() != case.kv),
            chunked: n(seen.chunked),
            mixed: n(seen.mixed),
            prefill_with_decode: n(seen.prefill_with_decode),
            threads: n(case.threads > 1),
            simd: n(case.simd != case.oracle.simd),
            engine: n(matches!(case.driver, Driver::Engine { .. })),
            shared: n(seen.shared),
            recomputed: n(seen.recomputed),
            crosses_64: crosses(64),
            crosses_256: crosses(256),
            literal: n(case.oracle.literal),
            windowed: n(case.windows.iter().any(Option::is_some)),
            offloaded: n(case.layers_in_memory.is_some_and(|n| n < case.cfg.n_layers)),
            evicted: n(seen.prefix_hit && seen.evicted),
            member: n(seen.member_recomputed),
            member_evicted: n(seen.member_recomputed && seen.prefix_hit && seen.evicted),
        }
    }

    /// Adds the counts of others.
    pub(crate) fn add(&mut self, other: &Counts) {
        for (a, (_, b)) in self.fields_mut().into_iter().zip(other.fields()) {
            *a += b;
        }
    }

    /// The first count below its minimum: its name, the count and the minimum.
    pub(crate) fn short_of(&self, minimum: &Counts) -> Option<(&'static str, usize, usize)> {
        let pairs = self.fields().into_iter().zip(minimum.fields());
        pairs.map(|((name, got), (_, min))| (name, got, min)).find(|(_, got, min)| got < min)
    }

    /// Multiplies each count by `n`.
    pub(crate) fn times(mut self, n: usize) -> Counts {
        self.fields_mut().into_iter().for_each(|x| *x *= n);
        self
    }
}

macro_rules! fields {
    ($($name:ident),*) => {
        impl Counts {
            fn fields(&self) -> Vec<(&'static str, usize)> {
                let Counts { $($name),* } = *self;
                vec![$((stringify!($name), $name)),*]
            }

            fn fields_mut(&mut self) -> Vec<&mut usize> {
                let Counts { $($name),* } = self;
                vec![$($name),*]
            }
        }
    };
}

fields!(
    cases,
    rows,
    values,
    f32,
    bf16,
    growing,
    contiguous,
    paged,
    int8,
    sinks,
    sinks_exact,
    chunked,
    mixed,
    prefill_with_decode,
    threads,
    simd,
    engine,
    shared,
    recomputed,
    crosses_64,
    crosses_256,
    literal,
    windowed,
    offloaded,
    evicted,
    member,
    member_evicted
);

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.fields().iter().map(|(name, n)| format!("{name} {n}")).collect();
        f.write_str(&all.join(", "))
    }
}

/// The first difference of a case.
#[derive(Debug, Clone)]
pub(crate) struct Difference {
    pub(crate) gate: &'static str,
    /// The number of the case.
    pub(crate) number: u64,
    /// Its debug output.
    pub(crate) case: String,
    /// The first differing row.
    pub(crate) sequence: usize,
    pub(crate) position: usize,
    /// What differs there.
    pub(crate) what: What,
}

/// A row of logits in a case.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowId {
    pub(super) sequence: usize,
    pub(super) position: usize,
}

impl RowId {
    /// For an error that belongs to no row.
    pub(super) const FIRST: RowId = RowId { sequence: 0, position: 0 };
}

/// What differs.
#[derive(Debug, Clone)]
pub(crate) enum What {
    /// A logit, by its index and bits.
    Logit { at: usize, got: u32, want: u32 },
    /// A sampled token.
    Token { got: u32, want: u32 },
    /// An error.
    Failed(String),
}

impl Difference {
    pub(super) fn new(case: &Case, row: RowId, what: What) -> Difference {
        let RowId { sequence, position } = row;
        let (number, case) = (case.number, format!("{case:?}"));
        Difference { gate: "invariance", number, case, sequence, position, what }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { gate, number, case, sequence, position, what } = self;
        write!(f, "gate {gate}, case {number}, seed {SEED}: sequence {sequence}, position {position}: ")?;
        match what {
            What::Logit { at, got, want } => write!(f, "logit {at}: got {got:08x}, want {want:08x}")?,
            What::Token { got, want } => write!(f, "token: got {got}, want {want}")?,
            What::Failed(error) => write!(f, "{error}")?,
        }
        write!(f, "\n  in {case}")
    }
}
