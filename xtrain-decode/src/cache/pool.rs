//! The keys and values of every layer, by slot.
use xtrain_model::{Qkv, Result, Rows};
use xtrain_tensor::ops::{self, QkNorm, SlotRange, Slots, UnrotatedHeads};
use xtrain_tensor::{
    Error, Tensor,
    faults::{self, Fault},
};

use super::{CacheShape, Usage};

/// A tensor `[S, nkv, hd]` of keys and one of values for each layer. Nothing else holds on to them, so
/// that a write is in place.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) shape: CacheShape,
    pub(super) k: Vec<Tensor>,
    pub(super) v: Vec<Tensor>,
    n_slots: usize,
    written: u64,
    copied: u64,
}

impl Pool {
    pub(super) fn new(shape: CacheShape, n_slots: usize) -> Result<Pool> {
        let layers = || (0..shape.n_layers).map(|_| zeros(&shape, n_slots)).collect::<Result<_>>();
        let (k, v) = (layers()?, layers()?);
        Ok(Pool { shape, k, v, n_slots, written: 0, copied: 0 })
    }

    pub(super) fn n_slots(&self) -> usize {
        self.n_slots
    }

    /// Bytes of the tensors.
    pub(super) fn bytes(&self) -> usize {
        let values: usize = self.k.iter().chain(&self.v).map(Tensor::len).sum();
        values * self.shape.dtype.bytes()
    }

    /// What is known here of the usage.
    pub(super) fn usage(&self, in_use: usize, positions: usize) -> Usage {
        let Pool { n_slots, written, copied, .. } = *self;
        Usage { slots: n_slots, in_use, positions, written, copied }
    }

    /// Refuses keys and values that are not those of `rows`.
    pub(super) fn check(&self, k: &Tensor, v: &Tensor, rows: &Rows) -> Result<()> {
        let want = [rows.len(), self.shape.n_kv_heads, self.shape.head_dim];
        if k.shape() != want || v.shape() != want {
            let got = vec![k.shape().to_vec(), v.shape().to_vec()];
            return Err(Error::Shape { op: "cache", want: "k and v [N, nkv, hd]", got }.into());
        }
        match [k, v].iter().find(|t| t.dtype() != self.shape.dtype) {
            Some(t) => Err(Error::Dtype { op: "cache", want: "the cache's dtype", got: t.dtype() }.into()),
            None => Ok(()),
        }
    }

    /// Writes the keys and values of `rows` into the slots of their positions.
    pub(super) fn write(&mut self, layer: usize, kv: [&Tensor; 2], rows: &Rows, slots: &Slots) -> Result<()> {
        let places = places(slots, rows);
        let spared = self.spared(layer, &rows.pos, &places)?;
        for (pool, new) in [&mut self.k[layer], &mut self.v[layer]].into_iter().zip(kv) {
            ops::scatter_rows(pool, new, &places)?;
        }
        self.wrote(layer, rows, spared)
    }

    /// Norms and turns the heads of `rows` and writes keys and values into the slots of their positions;
    /// the queries `[N, nh, hd]`.
    pub(super) fn append_rotated(
        &mut self,
        layer: usize,
        new: &Qkv<'_, Tensor>,
        rows: &Rows,
        slots: &Slots,
    ) -> Result<Tensor> {
        let places = places(slots, rows);
        let spared = self.spared(layer, &rows.pos, &places)?;
        let heads =
            |x: &Tensor| x.reshape(&[rows.len(), x.width() / self.shape.head_dim, self.shape.head_dim]);
        let new = UnrotatedHeads {
            q: &heads(new.q)?,
            k: &heads(new.k)?,
            v: new.v,
            norms: match new.norms {
                Some(([q, k], eps)) => Some(QkNorm { q_gain: q.value()?, k_gain: k.value()?, eps }),
                None => None,
            },
            rope: new.turn,
            slots: &places,
        };
        let q = ops::write_heads(&new, &mut self.k[layer], &mut self.v[layer])?;
        self.wrote(layer, rows, spared)?;
        Ok(q)
    }

    fn wrote(&mut self, layer: usize, rows: &Rows, spared: Option<Spared>) -> Result<()> {
        if let Some(Spared { places, k, v }) = spared {
            ops::scatter_rows(&mut self.k[layer], &k, &places)?;
            ops::scatter_rows(&mut self.v[layer], &v, &places)?;
        }
        self.written += (rows.len() * self.shape.bytes_per_token() / self.shape.n_layers) as u64;
        Ok(())
    }

    /// The planted fault: what is not overwritten.
    fn spared(&self, layer: usize, pos: &[u32], places: &[u32]) -> Result<Option<Spared>> {
        if !faults::on(Fault::DroppedCacheWrite) || layer + 1 < self.shape.n_layers {
            return Ok(None);
        }
        let places: Vec<u32> = places.iter().zip(pos).filter(|&(_, &p)| p == 2).map(|(&at, _)| at).collect();
        let (k, v) = (ops::gather_rows(&self.k[layer], &places)?, ops::gather_rows(&self.v[layer], &places)?);
        Ok(Some(Spared { places, k, v }))
    }

    /// Copies slots inside every layer; source and target do not overlap.
    pub(super) fn copy(&mut self, slots: SlotRange) -> Result<()> {
        for layer in 0..self.shape.n_layers {
            for t in [&mut self.k[layer], &mut self.v[layer]] {
                ops::copy_slots_within(t, slots)?;
            }
        }
        self.copied += (slots.len * self.shape.bytes_per_token()) as u64;
        Ok(())
    }

    /// Gives `layer` fresh tensors of `n_slots` slots with the old values at `moves`.
    pub(super) fn rebuild(&mut self, layer: usize, n_slots: usize, moves: &[SlotRange]) -> Result<()> {
        for t in [&mut self.k[layer], &mut self.v[layer]] {
            let mut fresh = zeros(&self.shape, n_slots)?;
            ops::copy_slots(&mut fresh, t, moves)?;
            *t = fresh;
        }
        let n: usize = moves.iter().map(|m| m.len).sum();
        self.copied += (n * self.shape.bytes_per_token() / self.shape.n_layers) as u64;
        self.n_slots = n_slots;
        Ok(())
    }

    /// Grows every layer to `n_slots` slots; the first keep their values.
    pub(super) fn grow(&mut self, n_slots: usize) -> Result<()> {
        let kept = SlotRange { from: 0, to: 0, len: self.n_slots };
        (0..self.shape.n_layers).try_for_each(|layer| self.rebuild(layer, n_slots, &[kept]))
    }
}

/// Slots, and what is in them.
struct Spared {
    places: Vec<u32>,
    k: Tensor,
    v: Tensor,
}

/// The slot of each row.
fn places(slots: &Slots, rows: &Rows) -> Vec<u32> {
    rows.seq.iter().zip(&rows.pos).map(|(&seq, &pos)| slot(slots, seq, pos as usize) as u32).collect()
}

/// Where position `pos` of sequence `seq` is written.
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

fn zeros(shape: &CacheShape, n_slots: usize) -> Result<Tensor> {
    Ok(Tensor::zeros(&shape.device, &[n_slots, shape.n_kv_heads, shape.head_dim], shape.dtype)?)
}
