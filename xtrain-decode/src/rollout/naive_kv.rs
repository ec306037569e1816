//! Keys and values of the oracles: no cache, and a function of the keys and values that attention reads.
use xtrain_model::{Eager, Functional, KvStore, KvView, NoCache, QkNorms, Qkv, Result, RowPlaces, Rows};
use xtrain_tensor::ops::{self, RopeArgs, Slots};
use xtrain_tensor::{Dtype, Tensor};

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
/// [`KvKind::Int8`](crate::KvKind::Int8) (docs/numerics.md, "Lossy caches"). It quantizes values one by one and shares
/// no code with the int8 cache.
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

/// The keys and values of a pass over `rows`, whole sequences from position 0, for the sinks and the window of each
/// row: the definition of [`KvKind::Sinks`](crate::KvKind::Sinks) (docs/numerics.md, "Lossy caches"). Each row is the
/// last one of a sequence of its own, and no row shares anything with another one.
///
/// # Errors
/// As [`NoCache::new`]; [`Error::Argument`](xtrain_tensor::Error::Argument) for a window of 0.
pub fn sinks_kv(rows: &Rows, [sinks, window]: [usize; 2]) -> Result<impl KvStore<Eager>> {
    NoCache::<Tensor>::new(rows)?; // whole sequences
    if window == 0 {
        let (op, want, got) = ("sinks_kv", "a window of at least 1", "0".to_string());
        return Err(xtrain_tensor::Error::Argument { op, want, got }.into());
    }
    let (mut kept, mut base) = (Vec::new(), Vec::new());
    let (mut places, mut own) = (Vec::new(), Vec::new());
    for (row, &t) in (0..).zip(&rows.pos) {
        let is_kept = |j: &u32| (*j as usize) < sinks || ((t - *j) as usize) < window;
        let list: Vec<u32> = (0..=t).filter(is_kept).map(|j| row - t + j).collect();
        base.push(kept.len());
        places.extend(0..list.len() as u32);
        own.push(list.len() as u32 - 1);
        kept.extend(list);
    }
    let sequences = (0..rows.len() as u32).collect();
    Ok(SinksKv { kept, places, sequences, last: own, slots: Slots::Runs { base }, view: None })
}

/// What each row of a pass attends to.
struct SinksKv {
    /// The rows of all lists, one list after another.
    kept: Vec<u32>,
    /// The place of each of them in its list.
    places: Vec<u32>,
    /// The number of each row: that of its list.
    sequences: Vec<u32>,
    /// The place of each row in its list.
    last: Vec<u32>,
    slots: Slots,
    view: Option<[Tensor; 2]>,
}

impl KvStore<Eager> for SinksKv {
    fn extend(&mut self, _: usize, k: Tensor, v: Tensor, _: &Rows) -> Result<KvView<'_, Tensor>> {
        let [k, v] = self.view.insert([k, v]);
        let places = RowPlaces { seq: &self.sequences, pos: &self.last };
        Ok(KvView { k, v, slots: &self.slots, places: Some(places) })
    }

    fn append_rotated(
        &mut self,
        f: &mut Eager,
        layer: usize,
        Qkv { q, k, v, norms, rope }: Qkv<'_, Tensor>,
        rows: &Rows,
    ) -> Result<(Tensor, KvView<'_, Tensor>)> {
        let at = |positions| RopeArgs { table: rope.table, positions };
        let q = f.norm_rope(q, norms.map(QkNorms::of_queries), at(&self.last))?;
        let k =
            f.norm_rope(&ops::gather_rows(k, &self.kept)?, norms.map(QkNorms::of_keys), at(&self.places))?;
        let v = ops::gather_rows(v, &self.kept)?;
        Ok((q, self.extend(layer, k, v, rows)?))
    }
}
