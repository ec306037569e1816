//! The operations that a forward pass uses. [`Eager`] computes values only; the tape of
//! [`autograd`](crate::autograd) also records how to differentiate them.
use xtrain_tensor::ops::{self, AttnMask, Norm, RopeArgs, Slots};
use xtrain_tensor::{Dtype, Tensor};

use crate::error::Result;
use crate::param::Param;
use crate::params::Linear;
use crate::rows::Rows;

/// The operations that [`Model::forward`](crate::Model::forward) uses. Each computes the operation of the same name
/// in [`xtrain_tensor::ops`].
///
/// Shapes: `N` rows, `C` model width, `nh` query heads, `nkv` key/value heads, `hd` head size, `F` MLP width.
pub trait Functional {
    /// An activation: a tensor, or a tensor with a node on the tape.
    type X: Clone;

    /// The embedding rows of `id`: `[N, C]`, f32.
    ///
    /// # Errors
    /// When an id is not below the vocabulary size.
    fn embedding(&mut self, table: &Param, id: &[u32]) -> Result<Self::X>;

    /// `x / sqrt(mean(x^2) + eps) * gain` of every row, rounded to the compute dtype.
    ///
    /// # Errors
    /// When `gain` does not have the width of `x`.
    fn rms_norm(&mut self, x: &Self::X, gain: &Param, eps: f32) -> Result<Self::X>;

    /// `x Wᵀ + b` for each of `ws`, `[N, out_i]` in the compute dtype. The linears of a group share one input
    /// gradient: its sum runs over the outputs of the first weight, then of the second, and so on.
    ///
    /// # Errors
    /// When a weight does not have the width of `x`.
    fn linears<const G: usize>(&mut self, x: &Self::X, ws: [&Linear; G]) -> Result<[Self::X; G]>;

    /// `silu(gate(x)) * up(x)`: `[N, F]`.
    ///
    /// # Errors
    /// When a weight does not have the width of `x`.
    fn swiglu(&mut self, x: &Self::X, gate: &Linear, up: &Linear) -> Result<Self::X>;

    /// `h + (x Wᵀ + b)`, f32: a projection added to the residual stream.
    ///
    /// # Errors
    /// When the shapes do not match.
    fn linear_add(&mut self, h: &Self::X, x: &Self::X, w: &Linear) -> Result<Self::X>;

    /// Splits `[N, H hd]` into heads `[N, H, hd]`, applies QK-norm if `norm` is given, then the rotary embedding.
    ///
    /// # Errors
    /// When a position is beyond the table.
    fn norm_rope(&mut self, x: &Self::X, norm: Option<HeadNorm<'_>>, rope: RopeArgs<'_>) -> Result<Self::X>;

    /// Causal attention of `q [N, nh, hd]` over `kv`. A row attends to the keys of its own sequence up to its own
    /// position; with a `window`, to the last `window` of them. `None`: full attention.
    ///
    /// # Errors
    /// When the shapes do not match.
    fn attention(
        &mut self,
        q: &Self::X,
        kv: KvView<'_, Self::X>,
        rows: &Rows,
        window: Option<usize>,
    ) -> Result<Self::X>;

    /// The same values in another shape.
    ///
    /// # Errors
    /// When the element counts differ.
    fn reshape(&mut self, x: &Self::X, shape: &[usize]) -> Result<Self::X>;
}

/// RMS norm over each head (QK-norm).
#[derive(Debug, Clone, Copy)]
pub struct HeadNorm<'a> {
    /// `[hd]`.
    pub gain: &'a Param,
    /// Added to the mean square.
    pub eps: f32,
}

impl<'a> HeadNorm<'a> {
    /// The norm with the values of its gain.
    ///
    /// # Errors
    /// When the gain has no f32 values.
    pub fn values(self) -> Result<Norm<'a>> {
        Ok(Norm { gain: self.gain.value()?, eps: self.eps })
    }
}

/// The gains of QK-norm and their common eps.
#[derive(Debug, Clone, Copy)]
pub struct QkNorms<'a> {
    /// The gain of query heads `[hd]`.
    pub q: &'a Param,
    /// The gain of key heads `[hd]`.
    pub k: &'a Param,
    /// Added to the mean square of a head.
    pub eps: f32,
}

impl<'a> QkNorms<'a> {
    /// The norm of query heads.
    pub fn of_queries(self) -> HeadNorm<'a> {
        HeadNorm { gain: self.q, eps: self.eps }
    }

    /// The norm of key heads.
    pub fn of_keys(self) -> HeadNorm<'a> {
        HeadNorm { gain: self.k, eps: self.eps }
    }
}

/// The projections of new rows, before QK-norm and rotation.
#[derive(Debug, Clone, Copy)]
pub struct Qkv<'a, X> {
    /// Queries `[N, nh hd]`.
    pub q: &'a X,
    /// Keys `[N, nkv hd]`.
    pub k: &'a X,
    /// Values `[N, nkv, hd]`.
    pub v: &'a X,
    /// The norms of queries and keys. `None`: no QK-norm.
    pub norms: Option<QkNorms<'a>>,
    /// The rotation of queries and keys.
    pub rope: RopeArgs<'a>,
}

/// Keys and values `[S, nkv, hd]`, in `S` slots, that the rows of a pass may attend to. For [`Eager`] also in int8
/// ([`quantize_heads`](ops::quantize_heads)).
#[derive(Debug)]
pub struct KvView<'a, X> {
    /// Keys, rotated.
    pub k: &'a X,
    /// Values.
    pub v: &'a X,
    /// The slot of each position of each sequence.
    pub slots: &'a Slots,
    /// Where the rows of the pass are in `slots`. `None`: at their own sequences and positions. Always `None` under a
    /// tape, which has no cache.
    pub places: Option<RowPlaces<'a>>,
}

/// The sequence and the position of each row of a pass, as the slots of a cache number them.
#[derive(Debug, Clone, Copy)]
pub struct RowPlaces<'a> {
    /// The sequence of each row.
    pub seq: &'a [u32],
    /// The position of each row in its sequence.
    pub pos: &'a [u32],
}

pub(crate) fn attn_mask<'a>(rows: &'a Rows, slots: &'a Slots, window: Option<usize>) -> AttnMask<'a> {
    AttnMask { seq: &rows.seq, pos: &rows.pos, slots, window }
}

/// `[N, H hd]` as `[N, H, hd]`.
pub(crate) fn split_heads(x: &Tensor, head_dim: usize) -> Result<Tensor> {
    Ok(x.reshape(&[x.shape()[0], x.width() / head_dim, head_dim])?)
}

/// `f` of each element, or the first error.
pub(crate) fn try_map<T, U, const G: usize>(
    all: [T; G],
    mut f: impl FnMut(T) -> Result<U>,
) -> Result<[U; G]> {
    let mut result = Ok(());
    let mapped =
        all.map(|x| f(x).map_err(|e| result = std::mem::replace(&mut result, Ok(())).and(Err(e))).ok());
    result.map(|()| mapped.map(|x| x.expect("there was no error")))
}

/// Inference: no tape. A value is freed after its last use.
#[derive(Debug, Default, Clone, Copy)]
pub struct Eager;

impl Functional for Eager {
    type X = Tensor;

    fn embedding(&mut self, table: &Param, id: &[u32]) -> Result<Tensor> {
        table.rows(id)
    }

    fn rms_norm(&mut self, x: &Tensor, gain: &Param, eps: f32) -> Result<Tensor> {
        Ok(ops::rms_norm(x, gain.value()?, eps, gain.compute())?)
    }

    fn linears<const G: usize>(&mut self, x: &Tensor, ws: [&Linear; G]) -> Result<[Tensor; G]> {
        let packed = try_map(ws, |w| Ok((w, w.weight.packed()?)))?;
        let affine = try_map(packed.each_ref(), |(w, packed)| w.affine(packed))?;
        let mut ys = ops::linears(x, &affine)?.into_iter();
        Ok(std::array::from_fn(|_| ys.next().expect("one output for each of G weights")))
    }

    fn swiglu(&mut self, x: &Tensor, gate: &Linear, up: &Linear) -> Result<Tensor> {
        let packed = [gate.weight.packed()?, up.weight.packed()?];
        Ok(ops::swiglu(x, [gate.affine(&packed[0])?, up.affine(&packed[1])?])?)
    }

    fn linear_add(&mut self, h: &Tensor, x: &Tensor, w: &Linear) -> Result<Tensor> {
        Ok(ops::linear_add(h, x, &*w.weight.packed()?, w.bias()?)?)
    }

    fn norm_rope(&mut self, x: &Tensor, norm: Option<HeadNorm<'_>>, rope: RopeArgs<'_>) -> Result<Tensor> {
        let x = split_heads(x, rope.table.head_dim())?;
        Ok(match norm {
            Some(norm) => ops::norm_rope(&x, norm.values()?, rope)?,
            None => ops::rope_rows(&x, rope, x.dtype())?,
        })
    }

    fn attention(
        &mut self,
        q: &Tensor,
        kv: KvView<'_, Tensor>,
        rows: &Rows,
        window: Option<usize>,
    ) -> Result<Tensor> {
        let mask = match kv.places {
            None => attn_mask(rows, kv.slots, window),
            Some(RowPlaces { seq, pos }) => AttnMask { seq, pos, slots: kv.slots, window },
        };
        match kv.k.dtype() {
            Dtype::U32 => Ok(ops::int8_attention(q, kv.k, kv.v, &mask)?),
            _ => Ok(ops::attention(q, kv.k, kv.v, &mask)?.0),
        }
    }

    fn reshape(&mut self, x: &Tensor, shape: &[usize]) -> Result<Tensor> {
        Ok(x.reshape(shape)?)
    }
}
