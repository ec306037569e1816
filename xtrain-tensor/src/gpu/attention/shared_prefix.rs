//! Attention backward of sequences that share the rows of a prefix, from copies of these rows for each sequence.
use super::backward;
use crate::backend::{Backend as _, RowOps as _};
use crate::gpu::Gpu;
use crate::operands::{AttnMask, AttnSaved, Heads, Slots};
use crate::{Device, Dtype, Result, Tensor};

/// `[dq, dk, dv]`. `dy` has the dtype of `q`. The operands have been checked.
pub(in crate::gpu) fn attention_backward(
    gpu: &Gpu,
    saved: &AttnSaved<'_>,
    dy: &Tensor,
    heads: Heads,
    mask: &AttnMask<'_>,
) -> Result<[Tensor; 3]> {
    match WholeSequences::of(mask, saved.k.shape()[0]) {
        Some(whole) => whole.attention_backward(gpu, saved, dy, heads, mask.window),
        None => backward::attention_backward(gpu, saved, dy, heads, mask),
    }
}

/// Whole sequences: the rows of an attention, with a copy of each shared row for every sequence that reads it.
struct WholeSequences {
    seq: Vec<u32>,
    pos: Vec<u32>,
    slots: Slots,
    /// The row of each copy, and the slot of its key.
    rows: Vec<u32>,
    keys: Vec<u32>,
    /// The copy of each row in its own sequence.
    own: Vec<u32>,
}

impl WholeSequences {
    /// `None`: no sequence has a prefix. The mask has been checked.
    fn of(mask: &AttnMask<'_>, n_slots: usize) -> Option<WholeSequences> {
        let sequences = mask.rows_by_sequence();
        if !mask.shares_prefixes(&sequences) {
            return None;
        }
        let mut row_of = vec![0; n_slots];
        for (n, (&seq, &pos)) in mask.seq.iter().zip(mask.pos).enumerate() {
            row_of[mask.slots.slot(seq, pos as usize)] = n as u32;
        }
        let (mut seq, mut pos, mut base) = (Vec::new(), Vec::new(), Vec::new());
        let (mut rows, mut keys, mut own) = (Vec::new(), Vec::new(), vec![0; mask.rows()]);
        for (i, (s, own_rows)) in sequences.iter().enumerate() {
            base.push(rows.len());
            let prefix = mask.pos[own_rows[0]] as usize;
            for p in 0..prefix + own_rows.len() {
                let slot = mask.slots.slot(*s, p);
                if p >= prefix {
                    own[own_rows[p - prefix]] = rows.len() as u32;
                }
                seq.push(i as u32);
                pos.push(p as u32);
                rows.push(row_of[slot]);
                keys.push(slot as u32);
            }
        }
        Some(WholeSequences { seq, pos, slots: Slots::Runs { base }, rows, keys, own })
    }

    /// `[dq, dk, dv]`. Copies of a row in sequences other than its own have no gradient.
    fn attention_backward(
        &self,
        gpu: &Gpu,
        saved: &AttnSaved<'_>,
        dy: &Tensor,
        heads: Heads,
        window: Option<usize>,
    ) -> Result<[Tensor; 3]> {
        let AttnSaved { q, k, v, y, lse } = *saved;
        let n_slots = k.shape()[0];
        let [q, y, lse] = [
            gpu.gather_rows(q, &self.rows)?,
            gpu.gather_rows(y, &self.rows)?,
            gpu.gather_rows(lse, &self.rows)?,
        ];
        let [k, v] = [gpu.gather_rows(k, &self.keys)?, gpu.gather_rows(v, &self.keys)?];
        let device = Device::Gpu(gpu.clone());
        let mut all_dy = Tensor::zeros(&device, q.shape(), dy.dtype())?;
        gpu.scatter_rows(&mut all_dy, dy, &self.own)?;
        let copies = AttnSaved { q: &q, k: &k, v: &v, y: &y, lse: &lse };
        let mask = AttnMask { seq: &self.seq, pos: &self.pos, slots: &self.slots, window };
        let [dq, dk, dv] = backward::attention_backward(gpu, &copies, &all_dy, heads, &mask)?;
        let sum = |x: &Tensor| -> Result<Tensor> {
            let width = heads.nkv * heads.hd;
            let mut sum = Tensor::zeros(&device, &[n_slots, width], Dtype::F32)?;
            gpu.embedding_backward(&mut sum, &self.keys, &x.reshape(&[self.keys.len(), width])?)?;
            sum.reshape(&[n_slots, heads.nkv, heads.hd])
        };
        Ok([gpu.gather_rows(&dq, &self.own)?, sum(&dk)?, sum(&dv)?])
    }
}
