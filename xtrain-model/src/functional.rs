//! The operations of a forward pass, over values with or without a tape.
use xtrain_tensor::ops::{self, Affine, AttnMask, Slots};
use xtrain_tensor::{RopeTable, Tensor};

use crate::error::Result;
use crate::param::Param;
use crate::params::Linear;
use crate::rows::Rows;

/// The operations that `Model::forward` uses. `f.rms_norm(&x, w, eps)` reads as in PyTorch.
#[allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "each is the operation of that name in `xtrain_tensor::ops`"
)]
pub trait Functional {
    /// A value: a tensor, or a tensor with its node on the tape.
    type X: Clone;
    /// The residual stream, f32.
    type H: Clone;

    fn embedding(&mut self, w: &Param, id: &[u32]) -> Result<Self::H>;
    fn rms_norm(&mut self, h: &Self::H, w: &Param, eps: f32) -> Result<Self::X>;
    /// Linear projections of the same normalized `h`. The gradient of `h` is one running sum over them.
    fn norm_linears<const G: usize>(
        &mut self,
        h: &Self::H,
        norm: (&Param, f32),
        ws: [&Linear; G],
    ) -> Result<[Self::X; G]>;
    /// `silu(gate(n)) up(n)` of the normalized `h`.
    fn norm_swiglu(&mut self, h: &Self::H, norm: (&Param, f32), gate_up: [&Linear; 2]) -> Result<Self::X>;
    /// `h + (x Wᵀ + b)`: a projection into the residual stream. `next` is the norm that reads the result.
    fn linear_add(&mut self, h: &Self::H, x: &Self::X, w: &Linear, next: (&Param, f32)) -> Result<Self::H>;
    /// `[N, H hd]` → `[N, H, hd]`: the optional norm over each head, then the RoPE rotation.
    fn norm_rope(&mut self, x: &Self::X, norm: Option<(&Param, f32)>, turn: &RopeArgs<'_>)
    -> Result<Self::X>;
    /// Attention of each row over the keys of its sequence up to its own position, limited to the sliding window if
    /// the layer has one.
    fn attention(&mut self, q: &Self::X, kv: KvView<'_, Self::X>, see: AttnRows<'_>) -> Result<Self::X>;
    fn reshape(&mut self, x: &Self::X, shape: &[usize]) -> Result<Self::X>;
}

/// The RoPE angles of rows.
#[derive(Debug, Clone, Copy)]
pub struct RopeArgs<'a> {
    /// Cosines and sines by position.
    pub table: &'a RopeTable,
    /// The position of each row.
    pub pos: &'a [u32],
}

/// Projections of new rows before QK-norm and RoPE rotation.
#[derive(Debug, Clone, Copy)]
pub struct Qkv<'a, X> {
    /// Queries `[N, nh hd]`.
    pub q: &'a X,
    /// Keys `[N, nkv hd]`.
    pub k: &'a X,
    /// Values `[N, nkv, hd]`, in their final form.
    pub v: &'a X,
    /// The QK-norm gains of queries and keys, and their eps. `None`: no QK-norm.
    pub norms: Option<([&'a Param; 2], f32)>,
    /// The RoPE angles of queries and keys.
    pub turn: RopeArgs<'a>,
}

/// Keys and values `[S, nkv, hd]` that the rows of a forward pass may attend to, and their KV slots.
#[derive(Debug)]
#[allow(missing_docs, reason = "documented above")]
pub struct KvView<'a, X> {
    pub k: &'a X,
    pub v: &'a X,
    pub slots: &'a Slots,
}

/// The rows of a forward pass and the attention mask of a layer.
#[derive(Debug, Clone, Copy)]
pub struct AttnRows<'a> {
    /// The rows.
    pub rows: &'a Rows,
    /// Sliding-window size, including the current token. `None`: full attention.
    pub window: Option<usize>,
}

impl<'a> AttnRows<'a> {
    pub(crate) fn attn_mask(self, slots: &'a Slots) -> AttnMask<'a> {
        AttnMask { seq: &self.rows.seq, pos: &self.rows.pos, slots, window: self.window }
    }
}

/// `[N, H hd]` as `[N, H, hd]`.
pub(crate) fn split_heads(x: &Tensor, head_dim: usize) -> Result<Tensor> {
    Ok(x.reshape(&[x.shape()[0], x.width() / head_dim, head_dim])?)
}

/// The residual stream without a tape.
#[derive(Debug, Clone)]
pub struct Residual {
    /// `[N, C]`, f32.
    pub h: Tensor,
    /// The normalized stream and the index of its gain, if the last addition computed it.
    normed: Option<(usize, Tensor)>,
}

impl From<Tensor> for Residual {
    fn from(h: Tensor) -> Residual {
        Residual { h, normed: None }
    }
}

impl Residual {
    /// The stream normalized with this gain. `None`: not computed yet.
    fn normed(&self, gain: &Param) -> Option<&Tensor> {
        self.normed.as_ref().filter(|(slot, _)| *slot == gain.index()).map(|(_, n)| n)
    }
}

/// Execution without a tape: values are tensors and are freed after their last use.
#[derive(Debug, Default, Clone, Copy)]
pub struct Eager;

impl Functional for Eager {
    type X = Tensor;
    type H = Residual;

    fn embedding(&mut self, w: &Param, id: &[u32]) -> Result<Residual> {
        Ok(w.rows(id)?.into())
    }

    fn rms_norm(&mut self, h: &Residual, w: &Param, eps: f32) -> Result<Tensor> {
        match h.normed(w) {
            Some(n) => Ok(n.clone()),
            None => Ok(ops::rms_norm(&h.h, w.value()?, eps, w.compute())?),
        }
    }

    fn norm_linears<const G: usize>(
        &mut self,
        h: &Residual,
        norm: (&Param, f32),
        ws: [&Linear; G],
    ) -> Result<[Tensor; G]> {
        let packed = ws.iter().map(|w| w.weight.packed()).collect::<Result<Vec<_>>>()?;
        let affine = ws.iter().zip(&packed).map(|(w, packed)| w.affine(packed));
        let affine = affine.collect::<Result<Vec<Affine<'_>>>>()?;
        let ys = match h.normed(norm.0) {
            Some(n) => ops::linears(n, &affine)?,
            None => ops::norm_linears(&h.h, (norm.0.value()?, norm.1), &affine)?,
        };
        Ok(ys.try_into().expect("one output for each of G weights"))
    }

    fn norm_swiglu(&mut self, h: &Residual, norm: (&Param, f32), [gate, up]: [&Linear; 2]) -> Result<Tensor> {
        let packed = [gate.weight.packed()?, up.weight.packed()?];
        let affine = [gate.affine(&packed[0])?, up.affine(&packed[1])?];
        Ok(match h.normed(norm.0) {
            Some(n) => ops::swiglu(n, affine)?,
            None => ops::norm_swiglu(&h.h, (norm.0.value()?, norm.1), affine)?,
        })
    }

    fn linear_add(&mut self, h: &Residual, x: &Tensor, w: &Linear, next: (&Param, f32)) -> Result<Residual> {
        let (gain, packed) = ((next.0.value()?, next.1), w.weight.packed()?);
        let (h, normed) = ops::linear_add_norm(&h.h, x, (&packed, w.bias()?), gain)?;
        Ok(Residual { h, normed: normed.map(|n| (next.0.index(), n)) })
    }

    fn norm_rope(&mut self, x: &Tensor, norm: Option<(&Param, f32)>, turn: &RopeArgs<'_>) -> Result<Tensor> {
        let x = split_heads(x, turn.table.head_dim())?;
        Ok(match norm {
            Some((w, eps)) => ops::norm_rope(&x, (w.value()?, eps), (turn.table, turn.pos))?,
            None => ops::rope_rows(&x, turn.table, turn.pos, x.dtype())?,
        })
    }

    fn attention(&mut self, q: &Tensor, kv: KvView<'_, Tensor>, see: AttnRows<'_>) -> Result<Tensor> {
        Ok(ops::attention(q, kv.k, kv.v, &see.attn_mask(kv.slots))?.0)
    }

    fn reshape(&mut self, x: &Tensor, shape: &[usize]) -> Result<Tensor> {
        Ok(x.reshape(shape)?)
    }
}
