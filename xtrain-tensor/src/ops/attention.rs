//! Causal grouped-query attention over a pool of KV slots.
use super::checks::{check_float, misfit, refuse, refuse_dtype};
use crate::dispatch::backend;
use crate::error::{Error, Result};
use crate::operands::{AttnMask, AttnSaved, Heads};
use crate::tensor::Tensor;

/// `y[n][h] = softmax(q[n][h] kᵀ / sqrt(hd)) v` over the visible keys of row `n`, and `L`, the logarithm of
/// each softmax's sum.
///
/// | operand | shape | |
/// |---|---|---|
/// | `q` | `[N, nh, hd]` | f32 or bf16 |
/// | `k`, `v` | `[S, nkv, hd]` | in the dtype of `q`: a pool of slots; query head `h` reads kv head `h / (nh / nkv)` |
/// | returns `y` | `[N, nh, hd]` | in the dtype of `q` |
/// | returns `L` | `[N, nh]` | f32 |
///
/// Order: keys in chunks of 64 at absolute positions, merged in ascending order (docs/numerics.md, section 3). The
/// bits of a row depend on its own keys alone: not on `N`, the page size or the slots.
///
/// # Errors
/// [`Error::Shape`] or [`Error::Dtype`] if operands do not match, [`Error::Index`] for a row with a visible slot
/// outside the pool, [`Error::Argument`] on a GPU for a head size that is not a multiple of 8.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, mask: &AttnMask<'_>) -> Result<(Tensor, Tensor)> {
    let heads = check("attention", [q, k, v], mask)?;
    backend(q.device()).attention([q, k, v], heads, mask)
}

/// [`attention`] of a decode step: one query per sequence over cached keys. `q [B, nh, hd]`. Row `b` is bit-identical
/// to the last row of the full attention over the same keys.
///
/// # Errors
/// As [`attention`].
pub fn decode_attention(q: &Tensor, k: &Tensor, v: &Tensor, mask: &AttnMask<'_>) -> Result<Tensor> {
    let heads = check("decode_attention", [q, k, v], mask)?;
    backend(q.device()).decode_attention([q, k, v], heads, mask)
}

/// `[dq, dk, dv]`, f32, of an attention. Sequences may share the rows of a prefix: their first positions are then in
/// the slots of rows of another sequence.
///
/// `dy [N, nh, hd]` f32 is first rounded to the dtype of `q`. Order: one chain from +0 per element. `dq` adds the
/// keys in ascending order; `dk` and `dv` add the query heads of the group, and inside each the rows, in ascending
/// order. A shared row adds the sums of the sequences that read it, in ascending order.
///
/// # Errors
/// As [`attention`]; [`Error::Argument`] unless every row has its own slot, the rows of a sequence are at consecutive
/// positions, and its earlier positions are in the slots of the same positions of one other sequence.
pub fn attention_backward(saved: &AttnSaved<'_>, dy: &Tensor, mask: &AttnMask<'_>) -> Result<[Tensor; 3]> {
    const OP: &str = "attention_backward";
    let AttnSaved { q, k, v, y, lse } = *saved;
    let heads = check(OP, [q, k, v], mask)?;
    refuse(
        y.shape() != q.shape() || dy.shape() != q.shape() || lse.shape() != &q.shape()[..2],
        OP,
        "y and dy as q, lse [N, nh]",
        &[q, y, dy, lse],
    )?;
    check_sequences(OP, mask, k.shape()[0])?;
    let dy = dy.cast(q.dtype())?;
    backend(q.device()).attention_backward(saved, &dy, heads, mask)
}

/// Checks that every row has its own slot, that the rows of a sequence are at consecutive positions, and that its
/// earlier positions are those of one other sequence.
fn check_sequences(op: &'static str, mask: &AttnMask<'_>, n_slots: usize) -> Result<()> {
    let refused = |want, got| Err(Error::Argument { op, want, got });
    let mut owners = vec![None; n_slots];
    for (&seq, &pos) in mask.seq.iter().zip(mask.pos) {
        let slot = mask.slots.slot(seq, pos as usize);
        if owners[slot].replace((seq, pos as usize)).is_some() {
            let got = format!("slot {slot} twice, at position {pos} of sequence {seq}");
            return refused("a separate slot for every row", got);
        }
    }
    for (seq, rows) in mask.rows_by_sequence() {
        let first = mask.pos[rows[0]] as usize;
        if let Some((at, &n)) = rows.iter().enumerate().find(|&(i, &n)| mask.pos[n] as usize != first + i) {
            let got = format!("position {} in place of {} in sequence {seq}", mask.pos[n], first + at);
            return refused("consecutive positions in a sequence", got);
        }
        let Some(last) = first.checked_sub(1) else { continue };
        let slot = |seq, pos| mask.slots.get(seq, pos).filter(|&slot| slot < n_slots);
        let owner = slot(seq, last).and_then(|slot| owners[slot]);
        let Some((other, _)) = owner.filter(|&(other, pos)| pos == last && other != seq) else {
            return refused(
                "a row for every position of a sequence",
                format!("none at {last} of sequence {seq}"),
            );
        };
        if let Some(pos) = (0..first).find(|&pos| slot(seq, pos) != slot(other, pos)) {
            let got = format!("position {last} of sequence {other}, and another slot at position {pos}");
            return refused("a prefix of one other sequence", got);
        }
    }
    Ok(())
}

fn check(op: &'static str, [q, k, v]: [&Tensor; 3], mask: &AttnMask<'_>) -> Result<Heads> {
    const SHAPES: &str =
        "q [N, nh, hd], k and v [S, nkv, hd], nh at least 1, nkv a divisor of nh, hd at most 256";
    let (&[_, nh, hd], &[_, nkv, hd_k]) = (q.shape(), k.shape()) else {
        return Err(misfit(op, SHAPES, &[q, k, v]));
    };
    let fits = hd == hd_k && (1..=256).contains(&hd) && nh > 0 && nkv > 0 && nh.is_multiple_of(nkv);
    refuse(!fits || k.shape() != v.shape(), op, SHAPES, &[q, k, v])?;
    refuse_dtype(q.dtype() != k.dtype() || k.dtype() != v.dtype(), op, "q, k and v in one dtype", k.dtype())?;
    check_float(op, q.dtype())?;
    mask.check(op, q.shape()[0], k.shape()[0])?;
    Ok(Heads { nh, nkv, hd })
}
