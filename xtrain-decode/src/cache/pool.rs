//! The pool: the keys and values of every layer by KV slot, written in place.
use std::ops::Range;

use xtrain_model::{Eager, Functional, KvView, QkNorms, Qkv, Result, Rows};
use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, QkNorm, SlotRange, Slots, UnrotatedHeads};

use super::interface::Usage;
use super::kind::{KvDtype, Room};
use super::kv_rows::KvRows;
use super::layers::Layers;
use super::ledger::Ledger;
use super::memory::KvMemory;
use super::shape::CacheShape;

/// A key tensor and a value tensor `[S, nkv, hd]` for each layer, in int8 as words of codes and scales. No other value
/// shares them, so writes are in place.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) shape: CacheShape,
    pub(super) ledger: Ledger,
    pub(super) slots: Slots,
    pub(super) layers: Layers,
    n_slots: usize,
    /// The slots of the rows of a pass. Empty between operations; kept for its memory.
    row_slots: Vec<u32>,
    pub(super) written: u64,
    pub(super) copied: u64,
}

impl Pool {
    /// At least `n_slots` slots, in `memory` if it is large enough, otherwise zeros, and an empty ledger.
    pub(super) fn new(
        shape: CacheShape,
        room: Room,
        slots: Slots,
        n_slots: usize,
        memory: KvMemory,
    ) -> Result<Pool> {
        let (layers, n_slots) = Layers::new(&shape, n_slots, memory)?;
        let ledger = Ledger::new(shape.n_layers, room.sequences, room.positions);
        Ok(Pool { shape, ledger, slots, layers, n_slots, row_slots: Vec::new(), written: 0, copied: 0 })
    }

    pub(super) fn n_slots(&self) -> usize {
        self.n_slots
    }

    pub(super) fn into_memory(self) -> KvMemory {
        self.layers.into_memory()
    }

    pub(super) fn bytes(&self) -> usize {
        self.layers.bytes()
    }

    pub(super) fn usage(&self, in_use: usize) -> Usage {
        let Pool { n_slots, written, copied, .. } = *self;
        Usage { slots: n_slots, in_use, positions: self.ledger.positions(), written, copied, evicted: 0 }
    }

    /// Writes the keys and values of `rows`, which have entered `layer`, into the slots of their positions.
    pub(super) fn extend(
        &mut self,
        layer: usize,
        kv: [&Tensor; 2],
        rows: &Rows,
    ) -> Result<KvView<'_, Tensor>> {
        let slots = self.slots_of(rows);
        for (pool, new) in self.layers.load(layer)?.iter_mut().zip(kv) {
            match self.shape.kv_dtype {
                KvDtype::Compute => ops::scatter_rows(pool, new, &slots)?,
                KvDtype::Int8 => ops::scatter_rows(pool, &ops::quantize_heads(new)?, &slots)?,
            }
        }
        self.leave(layer, rows, slots)
    }

    /// Applies QK-norm and RoPE to the heads of `rows`, which have entered `layer`, and writes keys and values into
    /// the slots of their positions, in one operation, in int8 in several. Also returns the queries `[N, nh, hd]`.
    pub(super) fn append_rotated(
        &mut self,
        layer: usize,
        new: &Qkv<'_, Tensor>,
        rows: &Rows,
    ) -> Result<(Tensor, KvView<'_, Tensor>)> {
        if self.shape.kv_dtype == KvDtype::Int8 {
            let q = Eager.norm_rope(new.q, new.norms.map(QkNorms::of_queries), new.rope)?;
            let k = Eager.norm_rope(new.k, new.norms.map(QkNorms::of_keys), new.rope)?;
            return Ok((q, self.extend(layer, [&k, new.v], rows)?));
        }
        let slots = self.slots_of(rows);
        let hd = self.shape.head_dim;
        let heads = |x: &Tensor| x.reshape(&[rows.len(), x.width() / hd, hd]);
        let norms = |QkNorms { q, k, eps }| -> Result<_> {
            Ok(QkNorm { q_gain: q.value()?, k_gain: k.value()?, eps })
        };
        let new = UnrotatedHeads {
            q: &heads(new.q)?,
            k: &heads(new.k)?,
            v: new.v,
            norms: new.norms.map(norms).transpose()?,
            rope: new.rope,
            slots: &slots,
        };
        let [k, v] = self.layers.load(layer)?;
        let q = ops::write_heads(&new, k, v)?;
        Ok((q, self.leave(layer, rows, slots)?))
    }

    /// Records that `rows` are written to `slots`.
    fn leave(&mut self, layer: usize, rows: &Rows, slots: Vec<u32>) -> Result<KvView<'_, Tensor>> {
        if let Some((dropped, zeros)) = self.shape.dropped_rows(layer, rows)? {
            let dropped: Vec<u32> = dropped.iter().map(|&n| slots[n as usize]).collect();
            let kv = self.layers.load(layer)?;
            kv.iter_mut().try_for_each(|t| ops::scatter_rows(t, &zeros, &dropped))?;
        }
        self.layers.store(layer, slots.iter().map(|&slot| slot as usize))?;
        self.written += (rows.len() * self.shape.layer_bytes_per_token()) as u64;
        self.ledger.leave(layer);
        self.row_slots = slots;
        let [k, v] = self.layers.loaded(layer);
        Ok(KvView { k, v, slots: &self.slots, places: None })
    }

    /// Copies slots inside every layer. Source and target do not overlap.
    pub(super) fn copy(&mut self, range: SlotRange) -> Result<()> {
        for layer in 0..self.shape.n_layers {
            let kv = self.layers.load(layer)?;
            kv.iter_mut().try_for_each(|t| ops::copy_slots_within(t, range))?;
            self.layers.store(layer, range.to..range.to + range.len)?;
        }
        self.copied += (range.len * self.shape.bytes_per_token()) as u64;
        Ok(())
    }

    /// A copy of the keys and values of `positions` of `seq`.
    pub(super) fn read_rows(&mut self, seq: u32, positions: Range<usize>) -> Result<KvRows> {
        self.ledger.check_held(seq, positions.end)?;
        let start = positions.start;
        let range = |(pos, from, len): (usize, usize, usize)| SlotRange { from, to: pos - start, len };
        let ranges: Vec<SlotRange> = self.runs(seq, positions.clone()).map(range).collect();
        Ok(KvRows::new(start, self.read_slots(&ranges, positions.len())?))
    }

    /// A copy of the slots of `ranges` in every layer: `n` rows.
    pub(super) fn read_slots(&mut self, ranges: &[SlotRange], n: usize) -> Result<Vec<[Tensor; 2]>> {
        let copy = |t: &Tensor| -> Result<Tensor> {
            let mut rows = self.shape.zeros(n)?;
            ops::copy_slots(&mut rows, t, ranges)?;
            Ok(rows)
        };
        let layer = |layer| {
            let [k, v] = self.layers.load(layer)?;
            Ok([copy(k)?, copy(v)?])
        };
        (0..self.shape.n_layers).map(layer).collect()
    }

    /// The positions up to `len` that `seq` lacks, all of which `rows` has. Checks that `seq` may have so many.
    pub(super) fn lacking(&self, seq: u32, rows: &KvRows, len: usize) -> Result<Range<usize>> {
        self.ledger.check_fits(seq, len)?;
        let lacking = self.ledger.len(seq)..len;
        if !lacking.is_empty() {
            self.shape.check_rows(rows, seq, lacking.clone())?;
        }
        Ok(lacking)
    }

    /// Extends `seq`, which has room, to `len` positions with those of `rows`, which has them.
    pub(super) fn write_rows(&mut self, seq: u32, rows: &KvRows, len: usize) -> Result<()> {
        let new = self.ledger.len(seq)..len;
        let range = |(pos, to, len): (usize, usize, usize)| SlotRange { from: pos - rows.first(), to, len };
        let mut ranges: Vec<SlotRange> = self.runs(seq, new.clone()).map(range).collect();
        if let ([first, second, ..], true) = (&mut ranges[..], faults::on(Fault::RowsRestoredToOtherPage)) {
            std::mem::swap(&mut first.from, &mut second.from);
            second.len = second.len.min(first.len);
            first.len = second.len;
        }
        for (layer, new) in rows.layers().iter().enumerate() {
            for (pool, new) in self.layers.load(layer)?.iter_mut().zip(new) {
                ops::copy_slots(pool, &new.to_device(&self.shape.device)?, &ranges)?;
            }
            self.layers.store(layer, ranges.iter().flat_map(|range| range.to..range.to + range.len))?;
        }
        self.copied += (new.len() * self.shape.bytes_per_token()) as u64;
        self.ledger.set_len(seq, len);
        Ok(())
    }

    /// The slots of `positions` of `seq` as runs: the first position, its slot, and the number of slots.
    fn runs(&self, seq: u32, positions: Range<usize>) -> impl Iterator<Item = (usize, usize, usize)> {
        let page = match &self.slots {
            Slots::Pages { page, .. } => *page,
            Slots::Runs { .. } => usize::MAX,
        };
        let (mut at, slots) = (positions.start, &self.slots);
        std::iter::from_fn(move || {
            let len = (page - at % page).min(positions.end.saturating_sub(at));
            let run = (len > 0).then(|| (at, slots.slot(seq, at), len));
            at += len;
            run
        })
    }

    /// Grows every layer to `n_slots` slots. The first slots keep their values.
    pub(super) fn grow(&mut self, n_slots: usize) -> Result<()> {
        self.layers.grow(&self.shape, self.n_slots, n_slots)?;
        self.copied += (self.n_slots * self.shape.bytes_per_token()) as u64;
        self.n_slots = n_slots;
        Ok(())
    }

    /// The slots of the positions of `rows`. [`leave`](Self::leave) takes the memory back.
    fn slots_of(&mut self, rows: &Rows) -> Vec<u32> {
        let mut slots = std::mem::take(&mut self.row_slots);
        slots.clear();
        slots.extend(rows.seq.iter().zip(&rows.pos).map(|(&seq, &pos)| self.slot(seq, pos as usize)));
        slots
    }

    /// The slot that position `pos` of sequence `seq` is written to.
    pub(super) fn slot(&self, seq: u32, pos: usize) -> u32 {
        let slot = match &self.slots {
            Slots::Pages { page, .. }
                if faults::on(Fault::PageOffByOne) && pos > 0 && pos.is_multiple_of(*page) =>
            {
                self.slots.slot(seq, pos - 1) + 1 - page
            }
            slots => slots.slot(seq, pos),
        };
        slot as u32
    }
}
