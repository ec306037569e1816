//! Attention backward over sequences that share the rows of a prefix.
use super::{gather_rows, gather_rows_backward, scatter_rows};
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::faults::{self, Fault};
use crate::operands::{AttnMask, AttnSaved, Heads, Slots};
use crate::tensor::Tensor;

/// The rows of an attention, with a copy of each shared row for every sequence that reads it.
pub(super) struct WholeSequences {
    /// The sequence and the position of each copy.
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
    /// `None`: no sequence has a prefix. The rows of a sequence must be at consecutive positions, and every earlier
    /// position of it must be in the slot of exactly one other row.
    pub(super) fn of(
        op: &'static str,
        mask: &AttnMask<'_>,
        n_slots: usize,
    ) -> Result<Option<WholeSequences>> {
        let mut row_of = vec![None; n_slots];
        for (n, (&seq, &pos)) in mask.seq.iter().zip(mask.pos).enumerate() {
            let slot = mask.slots.slot(seq, pos as usize);
            if row_of[slot].replace(n as u32).is_some() {
                let got = format!("slot {slot} twice, at position {pos} of sequence {seq}");
                return Err(Error::Argument { op, want: "a separate slot for every row", got });
            }
        }
        let sequences = mask.rows_by_sequence();
        if sequences.iter().all(|(_, rows)| mask.pos[rows[0]] == 0) {
            return check_consecutive(op, mask, &sequences).map(|()| None);
        }
        check_consecutive(op, mask, &sequences)?;
        let (mut seq, mut pos, mut base) = (Vec::new(), Vec::new(), Vec::new());
        let (mut rows, mut keys, mut own) = (Vec::new(), Vec::new(), vec![0; mask.rows()]);
        for (i, (s, own_rows)) in sequences.iter().enumerate() {
            base.push(rows.len());
            let prefix = mask.pos[own_rows[0]] as usize;
            for p in 0..prefix + own_rows.len() {
                let slot = mask.slots.get(*s, p).filter(|&slot| slot < n_slots);
                let row = slot.and_then(|slot| Some((slot, row_of[slot]?)));
                let Some((slot, row)) = row else {
                    let got = format!("no row for position {p} of sequence {s}");
                    return Err(Error::Argument { op, want: "a row for every position of a prefix", got });
                };
                if p >= prefix {
                    own[own_rows[p - prefix]] = rows.len() as u32;
                }
                (seq.push(i as u32), pos.push(p as u32));
                (rows.push(row), keys.push(slot as u32));
            }
        }
        Ok(Some(WholeSequences { seq, pos, slots: Slots::Runs { base }, rows, keys, own }))
    }

    /// [`super::attention_backward`], with `dy` in the dtype of `q`.
    pub(super) fn attention_backward(
        &self,
        saved: &AttnSaved<'_>,
        dy: &Tensor,
        heads: Heads,
        window: Option<usize>,
    ) -> Result<[Tensor; 3]> {
        let AttnSaved { q, k, v, y, lse } = *saved;
        let mask = AttnMask { seq: &self.seq, pos: &self.pos, slots: &self.slots, window };
        let by_row = |x: &Tensor| gather_rows(x, &self.rows);
        let by_key = |x: &Tensor| gather_rows(x, &self.keys);
        let (q, y, lse, k_all, v_all) = (by_row(q)?, by_row(y)?, by_row(lse)?, by_key(k)?, by_key(v)?);
        // the copies of a shared row in other sequences have no gradient
        let mut dy_all = Tensor::zeros(dy.device(), q.shape(), dy.dtype())?;
        scatter_rows(&mut dy_all, dy, &self.own)?;
        if faults::on(Fault::PrefixGradientInEverySequence) {
            dy_all = by_row(dy)?;
        }
        let copies = AttnSaved { q: &q, k: &k_all, v: &v_all, y: &y, lse: &lse };
        let [dq, dk, dv] = backend(q.device()).attention_backward(&copies, &dy_all, heads, &mask)?;
        debug_assert_eq!(dk.dtype(), Dtype::F32);
        let sum = |x: &Tensor| gather_rows_backward(x, &self.keys, k.shape()[0]);
        Ok([gather_rows(&dq, &self.own)?, sum(&dk)?, sum(&dv)?])
    }
}

fn check_consecutive(op: &'static str, mask: &AttnMask<'_>, sequences: &[(u32, Vec<usize>)]) -> Result<()> {
    for (seq, rows) in sequences {
        let first = mask.pos[rows[0]] as usize;
        if let Some((at, &n)) = rows.iter().enumerate().find(|&(i, &n)| mask.pos[n] as usize != first + i) {
            let got = format!("position {} in place of {} in sequence {seq}", mask.pos[n], first + at);
            return Err(Error::Argument { op, want: "consecutive positions in a sequence", got });
        }
    }
    Ok(())
}
