//! The slots and the bytes moved of every kind of cache over one script of operations, and what it refuses.
use xtrain::decode::cache::{Cache, Contiguous, Growing, Paged, Sinks, Snapshot};
use xtrain::decode::{CacheShape, KvDtype, KvKind, KvMemory, KvRows, KvSnapshot, Room};
use xtrain::model::{Error, Rows};
use xtrain::tensor::{Device, Dtype, Tensor};

use crate::{Record, list, row};

const LAYERS: usize = 2;
const HEADS: usize = 2;
const HEAD: usize = 4;
const ROOM: Room = Room { sequences: 3, positions: 14, slots: Some(28) };

fn shape(dtype: Dtype, kv_dtype: KvDtype) -> CacheShape {
    CacheShape { n_layers: LAYERS, n_kv_heads: HEADS, head_dim: HEAD, dtype, kv_dtype, device: Device::cpu() }
}

fn kinds() -> Vec<Box<dyn Cache>> {
    let of = |kv_dtype| shape(Dtype::F32, kv_dtype);
    let paged = |kv_dtype, page| Box::new(Paged::new(of(kv_dtype), ROOM, page, KvMemory::default()).unwrap());
    let whole = Room { slots: None, ..ROOM };
    vec![
        Box::new(Growing::new(of(KvDtype::Compute), ROOM)),
        Box::new(Contiguous::new(of(KvDtype::Compute), whole, KvMemory::default()).unwrap()),
        paged(KvDtype::Compute, 1),
        paged(KvDtype::Compute, 4),
        paged(KvDtype::Int8, 4),
        Box::new(Sinks::new(of(KvDtype::Compute), whole, [2, 12], KvMemory::default()).unwrap()),
        Box::new(Sinks::new(of(KvDtype::Compute), whole, [1, 4], KvMemory::default()).unwrap()),
    ]
}

/// Keys or values of `n` rows.
fn tensor(n: usize, heads: usize, first: usize) -> Tensor {
    let values: Vec<f32> = (0..n * heads * HEAD).map(|at| ((first + at) % 17) as f32 - 8.0).collect();
    Tensor::new(&Device::cpu(), &[n, heads, HEAD], values).unwrap()
}

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    for cache in kinds() {
        out.section(format!(
            "{}: lengths | slots, in use, positions, written, copied, evicted | available, bytes",
            cache.kind()
        ));
        Script { cache, out: &mut out, snapshot: None, rows: None }.run();
    }
    estimates(&mut out);
    out
}

struct Script<'o> {
    cache: Box<dyn Cache>,
    out: &'o mut Record,
    snapshot: Option<KvSnapshot>,
    rows: Option<KvRows>,
}

impl Script<'_> {
    fn run(mut self) {
        self.append(&[(0, 5)]);
        self.append(&[(0, 1), (1, 3)]);
        self.act("fork 0 to 2 at 5", |cache| cache.fork(0, 2, 5));
        self.append(&[(2, 1)]);
        self.append(&[(0, 1), (1, 1), (2, 1)]);
        self.act("rewind 0 to 5", |cache| cache.rewind(Snapshot { seq: 0, len: 5 }));
        self.act("rewind 1 to 9", |cache| cache.rewind(Snapshot { seq: 1, len: 9 }));
        self.act("reserve 1 to 8", |cache| cache.reserve(1, 8));
        self.act("reserve 1 to 15", |cache| cache.reserve(1, 15));
        self.read();
        self.act("free 2", |cache| {
            cache.free(2);
            Ok(())
        });
        self.write(2, 1);
        self.write(2, 4);
        self.write(2, 3);
        self.snapshot();
        self.append(&[(0, 3)]);
        self.restore(1, 4);
        self.restore(1, 5);
        self.restore(1, 6);
        self.prefixes();
        self.append(&[(1, 8)]);
        self.append(&[(2, 9)]);
        self.act("fork 1 to 0 at 3", |cache| cache.fork(1, 0, 3));
        self.act("fork 1 to 3 at 3", |cache| cache.fork(1, 3, 3));
        self.evictions();
        self.refused();
    }

    /// The state after an operation, and its error.
    fn note(&mut self, name: &str, result: Result<String, Error>) {
        let cache = &self.cache;
        let lengths = list((0..ROOM.sequences as u32).map(|seq| cache.seq_len(seq)));
        let usage = cache.usage();
        let moved = [usage.written, usage.copied, usage.evicted];
        let used = [usage.slots, usage.in_use, usage.positions];
        let available = match cache.available() {
            usize::MAX => "-".to_string(),
            n => n.to_string(),
        };
        let missing = list((0..ROOM.sequences as u32).map(|seq| cache.missing(seq, cache.seq_len(seq) + 3)));
        let state =
            format!("{lengths} | {} {} | {available} [{missing}] {}", list(used), list(moved), cache.bytes());
        let text = match result {
            Ok(text) if text.is_empty() => state,
            Ok(text) => format!("{state} | {text}"),
            Err(error) => format!("{state} | {error}"),
        };
        self.out.line(row(name, 34, text));
    }

    fn act(&mut self, name: &str, work: impl FnOnce(&mut dyn Cache) -> Result<(), Error>) {
        let result = work(&mut *self.cache).map(|()| String::new());
        self.note(name, result);
    }

    /// Appends rows to sequences, in every layer.
    fn append(&mut self, counts: &[(u32, usize)]) {
        let mut rows = Rows::default();
        for &(seq, n) in counts {
            let len = self.cache.seq_len(seq);
            (len..len + n).for_each(|pos| rows.push(seq, pos as u32, 0));
        }
        self.act(&format!("append {counts:?}"), |cache| {
            for layer in 0..LAYERS {
                let [k, v] = [3, 8].map(|first| tensor(rows.len(), HEADS, first + layer));
                cache.extend(layer, k, v, &rows)?;
            }
            Ok(())
        });
    }

    fn read(&mut self) {
        let result = self.cache.read_rows(0, 1..5);
        let text = result.map(|rows| {
            let text = format!("{} from {}, {} bytes", rows.len(), rows.first(), rows.bytes());
            self.rows = Some(rows);
            text
        });
        self.note("read 1..5 of 0", text);
        let result = self.cache.read_rows(1, 3..6).map(|rows| rows.len().to_string());
        self.note("read 3..6 of 1", result);
    }

    /// Writes the rows that were read, as those of a sequence that has `held` of them.
    fn write(&mut self, seq: u32, len: usize) {
        let Some(rows) = self.rows.clone() else { return };
        let from_zero = KvRows::new(0, rows.layers().to_vec());
        self.act(&format!("write {len} to {seq}"), |cache| cache.write_rows(seq, &from_zero, len));
        self.act(&format!("write {} to {seq}, late", len + 1), |cache| {
            cache.write_rows(seq, &KvRows::new(8, rows.layers().to_vec()), len + 1)
        });
    }

    fn snapshot(&mut self) {
        let result = self.cache.snapshot(0, 5).map(|snapshot| {
            self.snapshot = Some(snapshot);
            String::new()
        });
        self.note("snapshot 5 of 0", result);
    }

    fn restore(&mut self, to: u32, len: usize) {
        let Some(snapshot) = self.snapshot.take() else { return };
        self.act(&format!("restore {len} to {to}"), |cache| cache.restore(&snapshot, to, len));
        self.snapshot = Some(snapshot);
    }

    fn prefixes(&mut self) {
        if let Some(snapshot) = self.snapshot.take() {
            self.act("release", |cache| {
                cache.release(snapshot);
                Ok(())
            });
        }
        let tokens: Vec<u32> = (0..8).collect();
        self.act("keep 8 of 0", |cache| {
            cache.insert_prefix(0, &tokens);
            cache.free(0);
            cache.free(2);
            Ok(())
        });
        let matched = self.cache.match_prefix(2, &[0, 1, 2, 3, 4, 9, 9, 9]);
        self.note("match 0 to 4", Ok(matched.to_string()));
        let matched = self.cache.match_prefix(0, &tokens);
        self.note("match 0 to 7", Ok(matched.to_string()));
        self.cache.free(0);
        self.cache.free(2);
        self.note("free 0 and 2", Ok(String::new()));
    }

    /// Two prefixes of a page, of which the first is kept again, until the cache has room for one.
    fn evictions(&mut self) {
        (0..3).for_each(|seq| self.cache.free(seq));
        let tokens = |first: u32| -> Vec<u32> { (first..first + 4).collect() };
        for (seq, first) in [(0, 20), (1, 30), (0, 20)] {
            self.append(&[(seq, 4)]);
            self.act(&format!("keep 4 of {seq} from {first}"), |cache| {
                cache.insert_prefix(seq, &tokens(first));
                Ok(())
            });
            self.cache.free(seq);
        }
        self.act("reserve 2 to 14", |cache| cache.reserve(2, 14));
        self.act("reserve 1 to 8", |cache| cache.reserve(1, 8));
        for first in [30, 20] {
            let matched = self.cache.match_prefix(0, &tokens(first));
            self.note(&format!("match {first} to {}", first + 3), Ok(matched.to_string()));
        }
        self.cache.free(2);
    }

    /// Rows that the cache does not take.
    fn refused(&mut self) {
        let mut rows = Rows::default();
        rows.push(1, self.cache.seq_len(1) as u32, 0);
        self.act("one head", |cache| cache.extend(0, tensor(1, 1, 0), tensor(1, 1, 0), &rows).map(|_| ()));
        self.act("two rows for one", |cache| {
            cache.extend(0, tensor(2, HEADS, 0), tensor(2, HEADS, 0), &rows).map(|_| ())
        });
        self.act("bf16", |cache| {
            let [k, v] = [0, 0].map(|_| tensor(1, HEADS, 0).cast(Dtype::BF16).unwrap());
            cache.extend(0, k, v, &rows).map(|_| ())
        });
        self.act("layer 1 first", |cache| {
            cache.extend(1, tensor(1, HEADS, 0), tensor(1, HEADS, 0), &rows).map(|_| ())
        });
        let mut late = Rows::default();
        late.push(1, self.cache.seq_len(1) as u32 + 1, 0);
        self.act("a position too late", |cache| {
            cache.extend(0, tensor(1, HEADS, 0), tensor(1, HEADS, 0), &late).map(|_| ())
        });
        let mut unknown = Rows::default();
        unknown.push(3, 0, 0);
        self.act("sequence 3", |cache| {
            cache.extend(0, tensor(1, HEADS, 0), tensor(1, HEADS, 0), &unknown).map(|_| ())
        });
    }
}

/// Slots of sequences and of caches, by kind, and the names of kinds.
fn estimates(out: &mut Record) {
    out.section("slots of 0, 1, 9 and 64 positions; allocated for 3 sequences of 10, and with 31 slots");
    for name in ["off", "growing", "contiguous", "paged", "paged:8", "int8:5", "sinks:2+6"] {
        let kind: KvKind = name.parse().unwrap();
        let room = Room { sequences: 3, positions: 10, slots: None };
        let slots = [0, 1, 9, 64].map(|len| kind.slots(len));
        let allocated = [None, Some(31)].map(|slots| kind.allocated_slots(Room { slots, ..room }));
        let flags = [kind.keeps_all(), kind.is_exact()];
        out.line(row(name, 22, format!("{kind} {slots:?} {allocated:?} {flags:?}")));
    }
    for name in ["paged:0", "int8:", "sinks:2+0", "sinks:2", "Paged", "paged:4x", ""] {
        out.line(row(format!("{name:?}"), 22, name.parse::<KvKind>().unwrap_err().to_string()));
    }
    out.section("bytes per token");
    for dtype in [Dtype::F32, Dtype::BF16] {
        for kv_dtype in [KvDtype::Compute, KvDtype::Int8] {
            for head_dim in [1, 4, 7, 64] {
                let bytes = CacheShape { head_dim, ..shape(dtype, kv_dtype) }.bytes_per_token();
                out.line(row(format!("{dtype} {kv_dtype:?} {head_dim}"), 22, bytes.to_string()));
            }
        }
    }
}
