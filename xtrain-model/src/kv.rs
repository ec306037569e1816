//! The keys and values of a forward pass.
use xtrain_tensor::ops::Slots;

use crate::error::{Error, Result};
use crate::functional::{Functional, KvView, Qkv};
use crate::rows::Rows;

/// Storage of keys and values. A KV cache implements it only for [`Eager`](crate::Eager): using a cache under a tape
/// does not compile.
pub trait KvStore<F: Functional> {
    /// Appends the keys and values `[N, nkv, hd]` of `rows` at `layer`. Returns all keys and values that the rows may
    /// attend to, including their own.
    ///
    /// # Errors
    /// If the cache is full, or a row does not follow the cached positions.
    fn extend(&mut self, layer: usize, k: F::X, v: F::X, rows: &Rows) -> Result<KvView<'_, F::X>>;

    /// Applies QK-norm and RoPE to the heads of `rows`, then calls [`extend`](KvStore::extend). Returns the queries
    /// `[N, nh, hd]` and all keys and values that they may attend to.
    ///
    /// # Errors
    /// As [`extend`](KvStore::extend); a position outside the RoPE table.
    fn append_rotated(
        &mut self,
        f: &mut F,
        layer: usize,
        new: Qkv<'_, F::X>,
        rows: &Rows,
    ) -> Result<(F::X, KvView<'_, F::X>)> {
        let Qkv { q, k, v, norms, turn } = new;
        let q = f.norm_rope(q, norms.map(|(n, eps)| (n[0], eps)), &turn)?;
        let k = f.norm_rope(k, norms.map(|(n, eps)| (n[1], eps)), &turn)?;
        Ok((q, self.extend(layer, k, v.clone(), rows)?))
    }
}

/// No cache: the rows of a forward pass attend to each other. Used for training and for naive recomputation.
#[derive(Debug)]
pub struct NoCache<X> {
    kv: Option<(X, X)>,
    slots: Slots,
}

impl<X> NoCache<X> {
    /// For one forward pass over `rows`: complete sequences from position 0, each in consecutive rows.
    ///
    /// # Errors
    /// [`Error::CachePosition`] for the first row out of order.
    pub fn new(rows: &Rows) -> Result<NoCache<X>> {
        let mut base: Vec<usize> = Vec::new();
        for (n, (&seq, &pos)) in rows.seq.iter().zip(&rows.pos).enumerate() {
            let seq_at = seq as usize;
            if base.len() <= seq_at {
                base.resize(seq_at + 1, usize::MAX);
            }
            if pos == 0 && base[seq_at] == usize::MAX {
                base[seq_at] = n;
            }
            let want = if base[seq_at] == usize::MAX { 0 } else { (n - base[seq_at]) as u32 };
            if want != pos {
                return Err(Error::CachePosition { layer: 0, seq, want, got: pos });
            }
        }
        Ok(NoCache { kv: None, slots: Slots::Runs { base } })
    }
}

impl<F: Functional> KvStore<F> for NoCache<F::X> {
    fn extend(&mut self, _layer: usize, k: F::X, v: F::X, _rows: &Rows) -> Result<KvView<'_, F::X>> {
        let (k, v) = self.kv.insert((k, v));
        Ok(KvView { k, v, slots: &self.slots })
    }
}
