//! The keys and values of every layer, by slot.
use half::bf16;
use xtrain_model::{Result, Rows};
use xtrain_tensor::ops::Slots;
use xtrain_tensor::{Dtype, Error, Stored, Tensor, faults};

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

/// `len` slots that go from slot `from` to slot `to`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) len: usize,
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
        match self.shape.dtype {
            Dtype::BF16 => self.write_as::<bf16>(layer, kv, rows, slots),
            _ => self.write_as::<f32>(layer, kv, rows, slots),
        }
    }

    fn write_as<T: Stored>(
        &mut self,
        layer: usize,
        kv: [&Tensor; 2],
        rows: &Rows,
        slots: &Slots,
    ) -> Result<()> {
        let w = self.shape.width();
        for (to, from) in [&mut self.k[layer], &mut self.v[layer]].into_iter().zip(kv) {
            let (to, from) = (to.data_mut::<T>()?, from.data::<T>()?);
            for (from, (&seq, &pos)) in from.chunks_exact(w).zip(rows.seq.iter().zip(&rows.pos)) {
                if faults::on("dropped-cache-write") && layer + 1 == self.shape.n_layers && pos == 2 {
                    continue;
                }
                to[slot(slots, seq, pos as usize) * w..][..w].copy_from_slice(from);
            }
        }
        self.written += (2 * rows.len() * w * self.shape.dtype.bytes()) as u64;
        Ok(())
    }

    /// Copies slots inside every layer; source and target do not overlap.
    pub(super) fn copy(&mut self, slots: Move) -> Result<()> {
        for layer in 0..self.shape.n_layers {
            for t in [&mut self.k[layer], &mut self.v[layer]] {
                match self.shape.dtype {
                    Dtype::BF16 => copy_inside(t.data_mut::<bf16>()?, slots, self.shape.width()),
                    _ => copy_inside(t.data_mut::<f32>()?, slots, self.shape.width()),
                }
            }
        }
        self.copied += (slots.len * self.shape.bytes_per_token()) as u64;
        Ok(())
    }

    /// Gives `layer` fresh tensors of `n_slots` slots with the old values at `moves`.
    pub(super) fn rebuild(&mut self, layer: usize, n_slots: usize, moves: &[Move]) -> Result<()> {
        let w = self.shape.width();
        for t in [&mut self.k[layer], &mut self.v[layer]] {
            let mut fresh = zeros(&self.shape, n_slots)?;
            match self.shape.dtype {
                Dtype::BF16 => copy_over(fresh.data_mut::<bf16>()?, t.data()?, moves, w),
                _ => copy_over(fresh.data_mut::<f32>()?, t.data()?, moves, w),
            }
            *t = fresh;
        }
        let n: usize = moves.iter().map(|m| m.len).sum();
        self.copied += (2 * n * w * self.shape.dtype.bytes()) as u64;
        self.n_slots = n_slots;
        Ok(())
    }

    /// Grows every layer to `n_slots` slots; the first keep their values.
    pub(super) fn grow(&mut self, n_slots: usize) -> Result<()> {
        let kept = Move { from: 0, to: 0, len: self.n_slots };
        (0..self.shape.n_layers).try_for_each(|layer| self.rebuild(layer, n_slots, &[kept]))
    }
}

/// Where position `pos` of sequence `seq` is written.
fn slot(slots: &Slots, seq: u32, pos: usize) -> usize {
    match slots {
        Slots::Pages { page, .. }
            if faults::on("page-off-by-one") && pos > 0 && pos.is_multiple_of(*page) =>
        {
            slots.slot(seq, pos - 1) + 1 - page
        }
        _ => slots.slot(seq, pos),
    }
}

fn zeros(shape: &CacheShape, n_slots: usize) -> Result<Tensor> {
    Ok(Tensor::zeros(&shape.device, &[n_slots, shape.n_kv_heads, shape.head_dim], shape.dtype)?)
}

fn copy_inside<T: Copy>(values: &mut [T], Move { from, to, len }: Move, w: usize) {
    values.copy_within(from * w..(from + len) * w, to * w);
}

fn copy_over<T: Copy>(fresh: &mut [T], old: &[T], moves: &[Move], w: usize) {
    for &Move { from, to, len } in moves {
        fresh[to * w..][..len * w].copy_from_slice(&old[from * w..][..len * w]);
    }
}
