//! Where a forward pass finds the keys and values of earlier positions.
use xtrain_tensor::ops::Slots;

use crate::error::{Error, Result};
use crate::functional::{Functional, KvView, Qkv};
use crate::rows::Rows;

/// A home for keys and values. A cache implements it for [`Eager`](crate::Eager) alone, so that a
/// pass under a tape cannot be handed one: the compiler refuses it.
pub trait KvStore<F: Functional> {
    /// Takes the keys and values `[N, nkv, hd]` of `rows` at `layer`; returns all that the rows may
    /// see, theirs included.
    ///
    /// # Errors
    /// When there is no room, or a row does not follow what is held.
    fn extend(&mut self, layer: usize, k: F::X, v: F::X, rows: &Rows) -> Result<KvView<'_, F::X>>;

    /// Norms and turns the heads of `rows`, then [`extend`](KvStore::extend): the queries `[N, nh, hd]`, and all
    /// that they may see.
    ///
    /// # Errors
    /// As [`extend`](KvStore::extend), and for a position that the table has no angles for.
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

/// No memory: the rows of a pass see each other. This is training, and naive recompute.
#[derive(Debug)]
pub struct NoCache<X> {
    kv: Option<(X, X)>,
    slots: Slots,
}

impl<X> NoCache<X> {
    /// For one pass over `rows`: whole sequences from position 0, each in one run of rows.
    ///
    /// # Errors
    /// [`Error::CachePosition`] for the first row that is out of place.
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
