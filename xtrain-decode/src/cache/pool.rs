//! The pool: the keys and values of every layer, by KV slot.
use xtrain_model::{KvView, Qkv, Result, Rows};
use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, QkNorm, SlotRange, Slots, UnrotatedHeads};

use super::interface::Usage;
use super::shape::CacheShape;

/// A key tensor and a value tensor `[S, nkv, hd]` for each layer. No other value shares them, so writes are in place.
#[derive(Debug)]
pub(super) struct Pool {
    shape: CacheShape,
    k: Vec<Tensor>,
    v: Vec<Tensor>,
    n_slots: usize,
    written: u64,
    copied: u64,
}

impl Pool {
    pub(super) fn new(shape: CacheShape, n_slots: usize) -> Result<Pool> {
        let layers = || (0..shape.n_layers).map(|_| shape.zeros(n_slots)).collect::<Result<_>>();
        let (k, v) = (layers()?, layers()?);
        Ok(Pool { shape, k, v, n_slots, written: 0, copied: 0 })
    }

    pub(super) fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// A view of the keys and values of `layer` in `slots`.
    pub(super) fn view<'a>(&'a self, layer: usize, slots: &'a Slots) -> KvView<'a, Tensor> {
        KvView { k: &self.k[layer], v: &self.v[layer], slots }
    }

    /// Bytes of the tensors.
    pub(super) fn bytes(&self) -> usize {
        let values: usize = self.k.iter().chain(&self.v).map(Tensor::len).sum();
        values * self.shape.dtype.bytes()
    }

    /// The usage, given the slots in use and the positions of all sequences.
    pub(super) fn usage(&self, in_use: usize, positions: usize) -> Usage {
        let Pool { n_slots, written, copied, .. } = *self;
        Usage { slots: n_slots, in_use, positions, written, copied }
    }

    /// Writes the keys and values of `rows` into the slots of their positions.
    pub(super) fn write(&mut self, layer: usize, kv: [&Tensor; 2], rows: &Rows, slots: &Slots) -> Result<()> {
        let slots = slots_of_rows(slots, rows);
        let dropped = self.dropped_write(layer, &rows.pos, &slots)?;
        for (pool, new) in [&mut self.k[layer], &mut self.v[layer]].into_iter().zip(kv) {
            ops::scatter_rows(pool, new, &slots)?;
        }
        self.finish_write(layer, rows, dropped)
    }

    /// Applies QK-norm and RoPE to the heads of `rows` and writes keys and values into the slots of their positions,
    /// in one operation. Returns the queries `[N, nh, hd]`.
    pub(super) fn append_rotated(
        &mut self,
        layer: usize,
        new: &Qkv<'_, Tensor>,
        rows: &Rows,
        slots: &Slots,
    ) -> Result<Tensor> {
        let slots = slots_of_rows(slots, rows);
        let dropped = self.dropped_write(layer, &rows.pos, &slots)?;
        let heads =
            |x: &Tensor| x.reshape(&[rows.len(), x.width() / self.shape.head_dim, self.shape.head_dim]);
        let new = UnrotatedHeads {
            q: &heads(new.q)?,
            k: &heads(new.k)?,
            v: new.v,
            norms: match new.norms {
                Some(norms) => {
                    Some(QkNorm { q_gain: norms.q.value()?, k_gain: norms.k.value()?, eps: norms.eps })
                }
                None => None,
            },
            rope: new.rope,
            slots: &slots,
        };
        let q = ops::write_heads(&new, &mut self.k[layer], &mut self.v[layer])?;
        self.finish_write(layer, rows, dropped)?;
        Ok(q)
    }

    fn finish_write(&mut self, layer: usize, rows: &Rows, dropped: Option<DroppedWrite>) -> Result<()> {
        if let Some(DroppedWrite { slots, k, v }) = dropped {
            ops::scatter_rows(&mut self.k[layer], &k, &slots)?;
            ops::scatter_rows(&mut self.v[layer], &v, &slots)?;
        }
        self.written += (rows.len() * self.shape.layer_bytes_per_token()) as u64;
        Ok(())
    }

    /// The planted fault: the slots of position 2 in the last layer with their present values, to be restored.
    fn dropped_write(&self, layer: usize, pos: &[u32], slots: &[u32]) -> Result<Option<DroppedWrite>> {
        if !faults::on(Fault::DroppedCacheWrite) || layer + 1 < self.shape.n_layers {
            return Ok(None);
        }
        let slots: Vec<u32> = slots.iter().zip(pos).filter(|&(_, &p)| p == 2).map(|(&at, _)| at).collect();
        let (k, v) = (ops::gather_rows(&self.k[layer], &slots)?, ops::gather_rows(&self.v[layer], &slots)?);
        Ok(Some(DroppedWrite { slots, k, v }))
    }

    /// Copies slots inside every layer. Source and target do not overlap.
    pub(super) fn copy(&mut self, range: SlotRange) -> Result<()> {
        for t in self.k.iter_mut().chain(&mut self.v) {
            ops::copy_slots_within(t, range)?;
        }
        self.copied += (range.len * self.shape.bytes_per_token()) as u64;
        Ok(())
    }

    /// Grows every layer to `n_slots` slots. The first slots keep their values.
    pub(super) fn grow(&mut self, n_slots: usize) -> Result<()> {
        let kept = SlotRange { from: 0, to: 0, len: self.n_slots };
        for t in self.k.iter_mut().chain(&mut self.v) {
            let mut grown = self.shape.zeros(n_slots)?;
            ops::copy_slots(&mut grown, t, &[kept])?;
            *t = grown;
        }
        self.copied += (kept.len * self.shape.bytes_per_token()) as u64;
        self.n_slots = n_slots;
        Ok(())
    }
}

/// Slots and the values in them.
struct DroppedWrite {
    slots: Vec<u32>,
    k: Tensor,
    v: Tensor,
}

/// The slot of each row.
fn slots_of_rows(slots: &Slots, rows: &Rows) -> Vec<u32> {
    rows.seq.iter().zip(&rows.pos).map(|(&seq, &pos)| slot(slots, seq, pos as usize) as u32).collect()
}

/// The slot that position `pos` of sequence `seq` is written to.
pub(super) fn slot(slots: &Slots, seq: u32, pos: usize) -> usize {
    match slots {
        Slots::Pages { page, .. }
            if faults::on(Fault::PageOffByOne) && pos > 0 && pos.is_multiple_of(*page) =>
        {
            slots.slot(seq, pos - 1) + 1 - page
        }
        _ => slots.slot(seq, pos),
    }
}
