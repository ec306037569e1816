//! The operations a forward pass may use, over values that a tape may or may not watch.
use xtrain_tensor::Tensor;
use xtrain_tensor::ops::{self, Affine, AttnMask, Norm, RopeArgs, Slots};

use crate::error::Result;
use crate::param::Param;
use crate::params::Linear;
use crate::rows::Rows;

/// What `Model::forward` is written against; read `f.rms_norm(&x, w, eps)` as one reads it in PyTorch.
#[allow(missing_docs, reason = "each is the operation of that name in `xtrain_tensor::ops`")]
pub trait Functional {
    /// A value: a bare tensor, or one with a place on the tape.
    type X: Clone;
    /// The residual stream, f32.
    type H: Clone;

    fn embedding(&mut self, w: &Param, id: &[u32]) -> Result<Self::H>;
    fn rms_norm(&mut self, h: &Self::H, w: &Param, eps: f32) -> Result<Self::X>;
    /// Linears that read one normed `h`: their gradients by it are one running sum.
    fn norm_linears<const G: usize>(
        &mut self,
        h: &Self::H,
        norm: (&Param, f32),
        ws: [&Linear; G],
    ) -> Result<[Self::X; G]>;
    /// `silu(gate(n)) up(n)` of the normed `h`.
    fn norm_swiglu(&mut self, h: &Self::H, norm: (&Param, f32), gate_up: [&Linear; 2]) -> Result<Self::X>;
    /// `h + (x Wᵀ + b)`: a projection back into the residual stream, which the norm `next` reads.
    fn linear_add(&mut self, h: &Self::H, x: &Self::X, w: &Linear, next: (&Param, f32)) -> Result<Self::H>;
    /// `[N, H hd]` → `[N, H, hd]`: the norm over heads if there is one, then the rotation.
    fn norm_rope(&mut self, x: &Self::X, norm: Option<(&Param, f32)>, turn: &RopeArgs<'_>)
    -> Result<Self::X>;
    /// Over the keys that each row sees: those of its sequence up to its own, the last of them where there is
    /// a window.
    fn attention(&mut self, q: &Self::X, kv: KvView<'_, Self::X>, see: AttnRows<'_>) -> Result<Self::X>;
    fn reshape(&mut self, x: &Self::X, shape: &[usize]) -> Result<Self::X>;
}

/// New rows on their way to an attention: projections that are not yet normed or turned.
#[derive(Debug, Clone, Copy)]
pub struct Qkv<'a, X> {
    /// Queries `[N, nh hd]`.
    pub q: &'a X,
    /// Keys `[N, nkv hd]`.
    pub k: &'a X,
    /// Values `[N, nkv, hd]`, as they stay.
    pub v: &'a X,
    /// The gains over a head of queries and over one of keys, and their eps.
    pub norms: Option<([&'a Param; 2], f32)>,
    /// By what angles queries and keys are rotated.
    pub turn: RopeArgs<'a>,
}

/// Keys and values `[S, nkv, hd]` that the rows of a pass may attend to, and where they lie.
#[derive(Debug)]
#[allow(missing_docs, reason = "told above")]
pub struct KvView<'a, X> {
    pub k: &'a X,
    pub v: &'a X,
    pub slots: &'a Slots,
}

/// What the rows of a pass see in a layer.
#[derive(Debug, Clone, Copy)]
pub struct AttnRows<'a> {
    /// The rows.
    pub rows: &'a Rows,
    /// How many positions back they see, their own included; none: all.
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

/// A residual stream without a tape.
#[derive(Debug, Clone)]
pub struct Residual {
    /// `[N, C]`, f32.
    pub h: Tensor,
    /// Its norm by the gain of this slot, where a device took it when it added last.
    normed: Option<(usize, Tensor)>,
}

impl From<Tensor> for Residual {
    fn from(h: Tensor) -> Residual {
        Residual { h, normed: None }
    }
}

impl Residual {
    /// Its norm by this gain, if it was taken.
    fn normed(&self, gain: &Param) -> Option<&Tensor> {
        self.normed.as_ref().filter(|(slot, _)| *slot == gain.index()).map(|(_, n)| n)
    }
}

/// No tape: values are tensors, and nothing outlives its last use.
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
            None => ops::norm_linears(&h.h, Norm { gain: norm.0.value()?, eps: norm.1 }, &affine)?,
        };
        Ok(ys.try_into().expect("one output for each of G weights"))
    }

    fn norm_swiglu(&mut self, h: &Residual, norm: (&Param, f32), [gate, up]: [&Linear; 2]) -> Result<Tensor> {
        let packed = [gate.weight.packed()?, up.weight.packed()?];
        let affine = [gate.affine(&packed[0])?, up.affine(&packed[1])?];
        Ok(match h.normed(norm.0) {
            Some(n) => ops::swiglu(n, affine)?,
            None => ops::norm_swiglu(&h.h, Norm { gain: norm.0.value()?, eps: norm.1 }, affine)?,
        })
    }

    fn linear_add(&mut self, h: &Residual, x: &Tensor, w: &Linear, next: (&Param, f32)) -> Result<Residual> {
        let (norm, packed) = (Norm { gain: next.0.value()?, eps: next.1 }, w.weight.packed()?);
        let (h, normed) = ops::linear_add_norm(&h.h, x, w.affine(&packed)?, norm)?;
        Ok(Residual { h, normed: normed.map(|n| (next.0.index(), n)) })
    }

    fn norm_rope(&mut self, x: &Tensor, norm: Option<(&Param, f32)>, turn: &RopeArgs<'_>) -> Result<Tensor> {
        let x = split_heads(x, turn.table.head_dim())?;
        Ok(match norm {
            Some((w, eps)) => ops::norm_rope(&x, Norm { gain: w.value()?, eps }, *turn)?,
            None => ops::rope_rows(&x, *turn, x.dtype())?,
        })
    }

    fn attention(&mut self, q: &Tensor, kv: KvView<'_, Tensor>, see: AttnRows<'_>) -> Result<Tensor> {
        Ok(ops::attention(q, kv.k, kv.v, &see.attn_mask(kv.slots))?.0)
    }

    fn reshape(&mut self, x: &Tensor, shape: &[usize]) -> Result<Tensor> {
        Ok(x.reshape(shape)?)
    }
}
