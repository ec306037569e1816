//! Keys and values of earlier positions: the interface that a forward pass uses.
use xtrain_tensor::ops::Slots;

use crate::error::{Error, Result};
use crate::functional::{Functional, KvView, QkNorms, Qkv};
use crate::rows::Rows;

/// Stores keys and values. Caches implement it for [`Eager`](crate::Eager) only, so passing a cache to a forward pass
/// under a tape does not compile.
pub trait KvStore<F: Functional> {
    /// Appends the keys and values `[N, nkv, hd]` of `rows` at `layer`. Returns all keys and values that the rows may
    /// attend to, the new ones included.
    ///
    /// # Errors
    /// When the cache is full, or when a row's position is not the next one of its sequence.
    fn extend(&mut self, layer: usize, k: F::X, v: F::X, rows: &Rows) -> Result<KvView<'_, F::X>>;

    /// Applies QK-norm and the rotary embedding to the heads of `rows`, then calls [`extend`](KvStore::extend).
    /// Returns the queries `[N, nh, hd]` and all keys and values that they may attend to.
    ///
    /// # Errors
    /// As [`extend`](KvStore::extend), and when a position is beyond the rotary table.
    fn append_rotated(
        &mut self,
        f: &mut F,
        layer: usize,
        new: Qkv<'_, F::X>,
        rows: &Rows,
    ) -> Result<(F::X, KvView<'_, F::X>)> {
        let Qkv { q, k, v, norms, rope } = new;
        let q = f.norm_rope(q, norms.map(QkNorms::of_queries), rope)?;
        let k = f.norm_rope(k, norms.map(QkNorms::of_keys), rope)?;
        Ok((q, self.extend(layer, k, v.clone(), rows)?))
    }
}

/// No cache: the rows of a pass attend to each other. Used by training and by naive recompute.
#[derive(Debug)]
pub struct NoCache<X> {
    kv: Option<(X, X)>,
    slots: Slots,
}

impl<X> NoCache<X> {
    /// For one pass over `rows`: whole sequences from position 0, the rows of each sequence contiguous.
    ///
    /// # Errors
    /// [`Error::CachePosition`] for the first row that is not at the next position of its sequence.
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

    /// For one pass in which row `table[s][p]` holds the key of position `p` of sequence `s`.
    pub(crate) fn of_table(table: Vec<Vec<u32>>) -> NoCache<X> {
        NoCache { kv: None, slots: Slots::Pages { page: 1, table } }
    }
}

impl<F: Functional> KvStore<F> for NoCache<F::X> {
    fn extend(&mut self, _layer: usize, k: F::X, v: F::X, _rows: &Rows) -> Result<KvView<'_, F::X>> {
        let (k, v) = self.kv.insert((k, v));
        Ok(KvView { k, v, slots: &self.slots, places: None })
    }
}
