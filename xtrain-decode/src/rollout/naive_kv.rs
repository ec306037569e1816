//! Keys and values of the oracles: no cache, and a function of each key and value that attention reads.
use xtrain_model::{Eager, KvStore, KvView, NoCache, Qkv, Result, Rows};
use xtrain_tensor::{Dtype, Tensor, ops};

use crate::cache::append_separately;

/// The rows of a pass attend to `of` the keys and values of each other, their own included.
struct MappedKv<F> {
    of: F,
    store: NoCache<Tensor>,
}

impl<F: Fn(&Tensor) -> Result<Tensor>> KvStore<Eager> for MappedKv<F> {
    fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> Result<KvView<'_, Tensor>> {
        let (k, v) = ((self.of)(&k)?, (self.of)(&v)?);
        KvStore::<Eager>::extend(&mut self.store, layer, k, v, rows)
    }

    fn append_rotated(
        &mut self,
        _: &mut Eager,
        layer: usize,
        new: Qkv<'_, Tensor>,
        rows: &Rows,
    ) -> Result<(Tensor, KvView<'_, Tensor>)> {
        append_separately(self, layer, new, rows)
    }
}

/// One kv head for each of `n_heads` query heads.
pub(super) fn expanded_kv(rows: &Rows, n_heads: usize) -> Result<impl KvStore<Eager>> {
    // `[N, nkv, hd]` → `[N, nh, hd]`: bf16 values are widened and rounded back, which is exact
    let of = move |x: &Tensor| Ok(ops::repeat_kv(&x.cast(Dtype::F32)?, n_heads)?.cast(x.dtype())?);
    Ok(MappedKv { of, store: NoCache::new(rows)? })
}

/// The keys and values of a pass over `rows`, whole sequences from position 0, in int8: the definition of
/// [`KvKind::Int8`](crate::KvKind::Int8) (docs/numerics.md, "Lossy caches"). It quantizes values one by one and shares no
/// code with the int8 cache.
///
/// # Errors
/// As [`NoCache::new`].
pub fn int8_kv(rows: &Rows) -> Result<impl KvStore<Eager>> {
    Ok(MappedKv { of: quantized, store: NoCache::new(rows)? })
}

/// Each head vector of `x`, quantized and dequantized.
fn quantized(x: &Tensor) -> Result<Tensor> {
    let mut values = x.to_f32()?.to_vec::<f32>()?;
    for head in values.chunks_exact_mut(x.width()) {
        let scale = head.iter().fold(0.0, |largest: f32, x| largest.max(x.abs())) / 127.0;
        for x in head {
            let quotient = if (*x / scale).is_finite() { *x / scale } else { 0.0 };
            let code = quotient.round_ties_even().clamp(-127.0, 127.0);
            *x = f32::from(code as i8) * scale;
        }
    }
    Ok(Tensor::new(x.device(), x.shape(), values)?.cast(x.dtype())?)
}
