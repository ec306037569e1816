//! Causal grouped-query attention over keys that are found through slots.
use super::{AttnMask, shapes, widened};
use crate::cpu::attention::{self as fast, Number};
use crate::reference::{self, Bf16, F32, Heads};
use crate::{Device, Dtype, Error, Result, Simd, Stored, Tensor, gpu};

/// `y[n][h] = softmax(q[n][h] kᵀ / sqrt(hd)) v` over the keys that row `n` sees, and `L`, the log of
/// each softmax's sum.
///
/// | operand | shape | |
/// |---|---|---|
/// | `q` | `[N, nh, hd]` | f32 or bf16 |
/// | `k`, `v` | `[S, nkv, hd]` | a pool of slots; query head `h` reads kv head `h / (nh / nkv)` |
/// | returns `y` | `[N, nh, hd]` | in the dtype of `q` |
/// | returns `L` | `[N, nh]` | f32 |
///
/// Order: keys in chunks of 64 at absolute positions, merged in rising order (docs/numerics.md,
/// section 3). A row's bits depend on its own keys alone: not on `N`, the page size or the slots.
///
/// # Errors
/// [`Error::Shape`] or [`Error::Dtype`] when operands do not fit, [`Error::Index`] for a row that
/// would see a slot outside the pool, [`Error::Argument`] for a head size that is no multiple of 8 on
/// a GPU.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, see: &AttnMask<'_>) -> Result<(Tensor, Tensor)> {
    let heads = check("attention", [q, k, v], see)?;
    if let Device::Gpu(gpu) = q.device() {
        return gpu::attention::attention(gpu, [q, k, v], heads, see);
    }
    match (q.device().simd(), q.dtype()) {
        (Some(Simd::Reference), _) => {}
        (_, Dtype::BF16) => return in_lanes::<half::bf16>([q, k, v], heads, see),
        _ => return in_lanes::<f32>([q, k, v], heads, see),
    }
    let operands = [&*widened(q)?, &*widened(k)?, &*widened(v)?];
    let done = match q.dtype() {
        Dtype::BF16 => reference::attention::<Bf16>(operands, heads, see),
        _ => reference::attention::<F32>(operands, heads, see),
    };
    let y = Tensor::new(q.device(), q.shape(), done.y)?.cast(q.dtype())?;
    Ok((y, Tensor::new(q.device(), &q.shape()[..2], done.lse)?))
}

fn in_lanes<E: Stored + Number>(
    [q, k, v]: [&Tensor; 3],
    heads: Heads,
    see: &AttnMask<'_>,
) -> Result<(Tensor, Tensor)> {
    let operands = [q.data::<E>()?, k.data()?, v.data()?];
    let (y, lse) = fast::attention(q.device().as_cpu()?, operands, heads, see);
    Ok((Tensor::new(q.device(), q.shape(), y)?, Tensor::new(q.device(), &q.shape()[..2], lse)?))
}

/// One query per sequence over cached keys: [`attention`] of a decode step. `q [B, nh, hd]`; row
/// `b` has the bits of the last row of the full attention over the same keys.
///
/// # Errors
/// As [`attention`].
pub fn decode_attention(q: &Tensor, k: &Tensor, v: &Tensor, see: &AttnMask<'_>) -> Result<Tensor> {
    if let Device::Gpu(gpu) = q.device() {
        let heads = check("decode_attention", [q, k, v], see)?;
        return Ok(gpu::attention::decode_attention(gpu, [q, k, v], heads, see)?.0);
    }
    Ok(attention(q, k, v, see)?.0)
}

/// What the backward of [`attention`] reads: its operands and results.
#[derive(Debug)]
pub struct Saved<'a> {
    /// Queries `[N, nh, hd]`.
    pub q: &'a Tensor,
    /// Keys `[N, nkv, hd]`.
    pub k: &'a Tensor,
    /// Values `[N, nkv, hd]`.
    pub v: &'a Tensor,
    /// The output as it was stored.
    pub y: &'a Tensor,
    /// The `L` of the forward.
    pub lse: &'a Tensor,
}

/// `(dq, dk, dv)`, f32, of a pass over whole sequences whose rows see each other.
///
/// `dy [N, nh, hd]` f32 is rounded to the dtype of `q` at its entry. Order: one chain from +0 for
/// each element, in rising positions; for keys and values over the query heads of the group first.
///
/// # Errors
/// As [`attention`]; [`Error::Argument`] unless the sequences are whole, from position 0, and every
/// position has a slot of its own.
pub fn attention_backward(saved: &Saved<'_>, dy: &Tensor, see: &AttnMask<'_>) -> Result<[Tensor; 3]> {
    const OP: &str = "attention_backward";
    let Saved { q, k, v, y, lse } = *saved;
    let heads = check(OP, [q, k, v], see)?;
    if y.shape() != q.shape() || dy.shape() != q.shape() || lse.shape() != &q.shape()[..2] {
        return Err(Error::Shape {
            op: OP,
            want: "y and dy as q, lse [N, nh]",
            got: shapes(&[q, y, dy, lse]),
        });
    }
    for (seq, rows) in see.rows_by_sequence() {
        if let Some((at, &n)) = rows.iter().enumerate().find(|&(i, &n)| see.pos[n] as usize != i) {
            let got = format!("sequence {seq} with position {} where {at} belongs", see.pos[n]);
            return Err(Error::Argument { op: OP, want: "whole sequences from position 0", got });
        }
    }
    let mut taken = vec![false; k.shape()[0]];
    for (&seq, &pos) in see.seq.iter().zip(see.pos) {
        let slot = see.slots.slot(seq, pos as usize);
        if std::mem::replace(&mut taken[slot], true) {
            let got = format!("slot {slot} twice, at position {pos} of sequence {seq}");
            return Err(Error::Argument { op: OP, want: "a slot for every position", got });
        }
    }
    let dy = dy.cast(q.dtype())?;
    if let Device::Gpu(gpu) = q.device() {
        return gpu::attention::attention_backward(gpu, saved, &dy, heads, see);
    }
    let wrap = |x: &Tensor, d| Tensor::new(x.device(), x.shape(), d);
    let [dq, dk, dv] = match (q.device().simd(), q.dtype()) {
        (Some(Simd::Reference), _) => in_reference(saved, &dy, heads, see)?,
        (_, Dtype::BF16) => backward_in_lanes::<half::bf16>(saved, &dy, heads, see)?,
        _ => backward_in_lanes::<f32>(saved, &dy, heads, see)?,
    };
    Ok([wrap(q, dq)?, wrap(k, dk)?, wrap(v, dv)?])
}

fn backward_in_lanes<E: Stored + Number>(
    saved: &Saved<'_>,
    dy: &Tensor,
    heads: Heads,
    see: &AttnMask<'_>,
) -> Result<[Vec<f32>; 3]> {
    let Saved { q, k, v, y, lse } = *saved;
    let cpu = q.device().as_cpu()?;
    let [q, k, v, y, dy] = [q.data::<E>()?, k.data()?, v.data()?, y.data()?, dy.data()?];
    let saved = fast::Saved { q, k, v, y, dy, lse: lse.data()? };
    Ok(fast::attention_backward(cpu, saved, heads, see))
}

fn in_reference(saved: &Saved<'_>, dy: &Tensor, heads: Heads, see: &AttnMask<'_>) -> Result<[Vec<f32>; 3]> {
    let Saved { q, k, v, y, lse } = *saved;
    let [q_, k_, v_, y_, dy_] = [&widened(q)?, &widened(k)?, &widened(v)?, &widened(y)?, &widened(dy)?];
    let saved = reference::AttentionSaved { q: q_, k: k_, v: v_, y: y_, lse: lse.data()?, dy: dy_ };
    Ok(match q.dtype() {
        Dtype::BF16 => reference::attention_backward::<Bf16>(saved, heads, see),
        _ => reference::attention_backward::<F32>(saved, heads, see),
    })
}

fn check(op: &'static str, [q, k, v]: [&Tensor; 3], see: &AttnMask<'_>) -> Result<Heads> {
    let heads = match (q.shape(), k.shape()) {
        (&[_, nh, hd], &[_, nkv, hd_k])
            if hd == hd_k
                && (1..=256).contains(&hd)
                && nkv > 0
                && nh.is_multiple_of(nkv)
                && k.shape() == v.shape() =>
        {
            Heads { nh, nkv, hd }
        }
        _ => {
            let want = "q [N, nh, hd], k and v [S, nkv, hd], nkv a divisor of nh, hd at most 256";
            return Err(Error::Shape { op, want, got: shapes(&[q, k, v]) });
        }
    };
    if q.dtype() != k.dtype() || k.dtype() != v.dtype() {
        return Err(Error::Dtype { op, want: "q, k and v in one dtype", got: k.dtype() });
    }
    if let Device::Gpu(_) = q.device() {
        gpu::attention::check_head_size(op, heads.hd)?;
    }
    see.check(op, q.shape()[0], k.shape()[0])?;
    Ok(heads)
}
