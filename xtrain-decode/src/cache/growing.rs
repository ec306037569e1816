//! The growing cache: one key tensor and one value tensor per sequence and layer. Read this cache first.
//!
//! A forward pass does the following in each layer:
//!
//! 1. [`rope_at`](ops::rope_at) rotates the new queries and keys if all rows belong to one sequence; otherwise
//!    [`rope_pos`](ops::rope_pos) does (`rotate.rs`).
//! 2. [`cat_seq`](ops::cat_seq) appends the new keys and values to the cached ones of their sequence.
//! 3. Attention reads the tensors of the sequence. With several sequences in the batch, their tensors are first
//!    concatenated into one.
//!
//! The other caches differ in where keys and values are stored, and give bitwise equal results.
use std::collections::BTreeMap;
use std::ops::Range;

use xtrain_model::{Eager, Error, KvStore, KvView, Qkv, Result, Rows};
use xtrain_tensor::Tensor;
use xtrain_tensor::ops::{self, Slots};

use super::interface::{Cache, Snapshot, Usage};
use super::kind::{KvKind, Room};
use super::kv_rows::KvRows;
use super::ledger::Ledger;
use super::rotate::append_separately;
use super::shape::CacheShape;

/// The classic baseline. Every step copies all keys and values of its sequences, so a sequence of `n` tokens costs
/// O(n²) copies.
#[derive(Debug)]
pub struct Growing {
    shape: CacheShape,
    room: Room,
    ledger: Ledger,
    /// `layers[layer][seq]`. `None`: the sequence holds nothing.
    layers: Vec<Vec<Option<Kv>>>,
    /// What attention reads: the tensors of the batch in the layer that was extended last.
    view: Option<(Kv, Slots)>,
    /// Number of positions reserved for each sequence.
    reserved: Vec<usize>,
    written: u64,
    copied: u64,
}

/// Keys and values `[T, nkv, hd]`. A clone shares the values.
#[derive(Debug, Clone)]
struct Kv {
    k: Tensor,
    v: Tensor,
}

impl Kv {
    fn len(&self) -> usize {
        self.k.shape()[0]
    }
    fn bytes(&self) -> usize {
        (self.k.len() + self.v.len()) * self.k.dtype().bytes()
    }

    /// `self` followed by `next`.
    fn cat(&self, next: &Kv) -> Result<Kv> {
        Ok(Kv { k: ops::cat_seq(&self.k, &next.k)?, v: ops::cat_seq(&self.v, &next.v)? })
    }

    fn gather(&self, rows: &[u32]) -> Result<Kv> {
        Ok(Kv { k: ops::gather_rows(&self.k, rows)?, v: ops::gather_rows(&self.v, rows)? })
    }

    /// All parts, one after another. At least one part. Concatenating halves copies each row O(log parts) times.
    fn cat_all(parts: &[&Kv]) -> Result<Kv> {
        if let [one] = parts {
            return Ok((*one).clone());
        }
        let (left, right) = parts.split_at(parts.len() / 2);
        Kv::cat_all(left)?.cat(&Kv::cat_all(right)?)
    }
}

impl Growing {
    /// An empty cache. `room` limits its growth. Nothing is allocated in advance.
    pub fn new(shape: CacheShape, room: Room) -> Growing {
        Growing {
            ledger: Ledger::new(shape.n_layers, room.sequences, room.positions),
            layers: vec![vec![None; room.sequences]; shape.n_layers],
            view: None,
            reserved: vec![0; room.sequences],
            written: 0,
            copied: 0,
            shape,
            room,
        }
    }

    /// Appends the keys and values of `rows` to their sequences in `layer`, and sets the view.
    fn append(&mut self, layer: usize, new: &Kv, rows: &Rows) -> Result<()> {
        let mut rows_of: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (row, &seq) in rows.seq.iter().enumerate() {
            rows_of.entry(seq).or_default().push(row as u32);
        }
        for (&seq, own) in &rows_of {
            let new = if own.len() == new.len() { new.clone() } else { new.gather(own)? };
            // Rows of a pass that failed after this layer are dropped here.
            let held = self.prefix(layer, seq, self.ledger.len(seq))?;
            self.layers[layer][seq as usize] = Some(match held {
                Some(held) => {
                    self.copied += held.bytes() as u64;
                    held.cat(&new)?
                }
                None => new,
            });
        }
        self.set_view(layer, rows_of.into_keys())?;
        self.written += (rows.len() * self.shape.layer_bytes_per_token()) as u64;
        Ok(())
    }

    /// Makes `layer` of these sequences readable as one tensor.
    fn set_view(&mut self, layer: usize, seqs: impl Iterator<Item = u32>) -> Result<()> {
        let (mut base, mut end, mut parts) = (vec![0; self.room.sequences], 0, Vec::new());
        for seq in seqs {
            let kv = self.layers[layer][seq as usize].as_ref().expect("its rows have just been appended");
            base[seq as usize] = end;
            end += kv.len();
            parts.push(kv);
        }
        let kv = match parts[..] {
            [] => Kv { k: self.shape.zeros(0)?, v: self.shape.zeros(0)? },
            _ => Kv::cat_all(&parts)?,
        };
        if parts.len() > 1 {
            self.copied += kv.bytes() as u64;
        }
        self.view = Some((kv, Slots::Runs { base }));
        Ok(())
    }

    /// The first `len` positions of `seq` in `layer`. `None` for 0.
    fn prefix(&self, layer: usize, seq: u32, len: usize) -> Result<Option<Kv>> {
        Ok(match &self.layers[layer][seq as usize] {
            Some(kv) if len == kv.len() => Some(kv.clone()),
            Some(kv) if len > 0 => Some(kv.gather(&(0..len as u32).collect::<Vec<_>>())?),
            _ => None,
        })
    }

    /// Makes `to` hold the first `len` positions of `from` in every layer.
    fn copy_prefix(&mut self, from: u32, to: u32, len: usize) -> Result<()> {
        self.view = None;
        for layer in 0..self.layers.len() {
            self.layers[layer][to as usize] = self.prefix(layer, from, len)?;
        }
        self.ledger.set_len(to, len);
        self.reserved[to as usize] = len;
        Ok(())
    }

    /// Checks the rows of a pass at `layer`. Its first layer reserves room for all of them, or for none.
    fn enter(&mut self, layer: usize, rows: &Rows) -> Result<()> {
        self.ledger.enter(layer, rows)?;
        if layer > 0 {
            return Ok(());
        }
        let before = self.reserved.clone();
        let wanted: Vec<(u32, usize)> = self.ledger.pass().collect();
        let reserved = wanted.into_iter().try_for_each(|(seq, len)| self.reserve(seq, len));
        reserved.inspect_err(|_| self.reserved = before)
    }
}

impl KvStore<Eager> for Growing {
    fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> Result<KvView<'_, Tensor>> {
        self.shape.check(&k, &v, rows)?;
        self.enter(layer, rows)?;
        let mut new = Kv { k, v };
        if let Some((dropped, zeros)) = self.shape.dropped_rows(layer, rows)? {
            ops::scatter_rows(&mut new.k, &zeros, &dropped)?;
            ops::scatter_rows(&mut new.v, &zeros, &dropped)?;
        }
        self.append(layer, &new, rows)?;
        self.ledger.leave(layer);
        let (kv, slots) = self.view.as_ref().expect("it has just been set");
        Ok(KvView { k: &kv.k, v: &kv.v, slots, places: None })
    }

    fn append_rotated(
        &mut self,
        _: &mut Eager,
        layer: usize,
        new: Qkv<'_, Tensor>,
        rows: &Rows,
    ) -> Result<(Tensor, KvView<'_, Tensor>)> {
        append_separately(self, layer, new, rows)
    }
}

impl Cache for Growing {
    fn kind(&self) -> KvKind {
        KvKind::Growing
    }
    fn shape(&self) -> &CacheShape {
        &self.shape
    }
    fn seq_len(&self, seq: u32) -> usize {
        self.ledger.len(seq)
    }

    /// A slot is a position of a sequence: none is allocated in advance.
    fn usage(&self) -> Usage {
        let positions = self.ledger.positions();
        let Growing { written, copied, .. } = *self;
        Usage { slots: positions, in_use: positions, positions, written, copied, evicted: 0 }
    }

    /// The tensors of the sequences. The concatenated view of one layer is scratch and not counted.
    fn bytes(&self) -> usize {
        self.layers.iter().flatten().flatten().map(Kv::bytes).sum()
    }

    fn reserve(&mut self, seq: u32, len: usize) -> Result<()> {
        self.ledger.check_fits(seq, 0)?;
        let others = self.reserved.iter().sum::<usize>() - self.reserved[seq as usize];
        let limit = self.room.positions.min(self.room.slots.unwrap_or(usize::MAX).saturating_sub(others));
        if len > limit {
            return Err(Error::CacheFull { seq, pos: limit as u32 });
        }
        self.reserved[seq as usize] = self.reserved[seq as usize].max(len);
        Ok(())
    }

    fn fork(&mut self, from: u32, to: u32, len: usize) -> Result<()> {
        self.ledger.check_held(from, len)?;
        self.reserve(to, len)?;
        self.copy_prefix(from, to, len)
    }

    fn rewind(&mut self, Snapshot { seq, len }: Snapshot) -> Result<()> {
        self.ledger.check_held(seq, len)?;
        self.copy_prefix(seq, seq, len)
    }

    fn read_rows(&mut self, seq: u32, positions: Range<usize>) -> Result<KvRows> {
        self.ledger.check_held(seq, positions.end)?;
        let rows: Vec<u32> = positions.clone().map(|pos| pos as u32).collect();
        let read = |layer: &Vec<Option<Kv>>| match layer.get(seq as usize).and_then(Option::as_ref) {
            Some(kv) => kv.gather(&rows).map(|Kv { k, v }| [k, v]),
            None => Ok([self.shape.zeros(0)?, self.shape.zeros(0)?]),
        };
        Ok(KvRows::new(positions.start, self.layers.iter().map(read).collect::<Result<_>>()?))
    }

    fn write_rows(&mut self, seq: u32, rows: &KvRows, len: usize) -> Result<()> {
        let held = self.seq_len(seq);
        self.ledger.check_fits(seq, len)?;
        if len <= held {
            return Ok(());
        }
        self.shape.check_rows(rows, seq, held..len)?;
        self.reserve(seq, len)?;
        let taken: Vec<u32> = (held..len).map(|pos| (pos - rows.first()) as u32).collect();
        let mut layers = Vec::with_capacity(self.layers.len());
        for (layer, [k, v]) in rows.layers().iter().enumerate() {
            let device = &self.shape.device;
            let new = Kv { k: k.to_device(device)?, v: v.to_device(device)? }.gather(&taken)?;
            layers.push(match self.prefix(layer, seq, held)? {
                Some(held) => held.cat(&new)?,
                None => new,
            });
        }
        self.view = None;
        for (layer, kv) in self.layers.iter_mut().zip(layers) {
            layer[seq as usize] = Some(kv);
        }
        self.copied += (taken.len() * self.shape.bytes_per_token()) as u64;
        self.ledger.set_len(seq, len);
        Ok(())
    }
}
