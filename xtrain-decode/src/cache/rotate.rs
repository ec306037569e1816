//! QK-norm and RoPE as separate operations.
use xtrain_model::{Eager, HeadNorm, KvStore, KvView, QkNorms, Qkv, Result, Rows};
use xtrain_tensor::ops::{self, RopeArgs};
use xtrain_tensor::{Dtype, Tensor};

/// [`KvStore::append_rotated`] with separate operations for QK-norm and RoPE.
pub(crate) fn append_separately<'a>(
    store: &'a mut impl KvStore<Eager>,
    layer: usize,
    Qkv { q, k, v, norms, rope }: Qkv<'_, Tensor>,
    rows: &Rows,
) -> Result<(Tensor, KvView<'a, Tensor>)> {
    let q = norm_rope(q, norms.map(QkNorms::of_queries), rope)?;
    let k = norm_rope(k, norms.map(QkNorms::of_keys), rope)?;
    Ok((q, store.extend(layer, k, v.clone(), rows)?))
}

/// `[N, H hd]` → `[N, H, hd]`. Norm and rotation are in f32; the result is rounded once to the dtype of `x`.
fn norm_rope(x: &Tensor, norm: Option<HeadNorm<'_>>, rope: RopeArgs<'_>) -> Result<Tensor> {
    let (hd, dtype) = (rope.table.head_dim(), x.dtype());
    let mut x = x.reshape(&[x.shape()[0], x.width() / hd, hd])?;
    if let Some(HeadNorm { gain, eps }) = norm {
        x = ops::rms_norm(&x, gain.value()?, eps, Dtype::F32)?;
    }
    let rotated = match first_of_consecutive(rope.positions) {
        Some(0) => ops::rope(&x, rope.table)?,
        Some(first) => ops::rope_at(&x, rope.table, first)?,
        None => ops::rope_pos(&x, rope.positions, rope.table)?,
    };
    Ok(rotated.cast(dtype)?)
}

/// The first position, if the positions are consecutive: one sequence.
fn first_of_consecutive(pos: &[u32]) -> Option<u32> {
    let consecutive = pos.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
    pos.first().copied().filter(|_| consecutive)
}
