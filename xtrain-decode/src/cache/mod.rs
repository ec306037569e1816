//! Caches of keys and values: one trait, three kinds, one bookkeeping of positions.
mod contiguous;
mod growing;
mod kind;
mod ledger;
mod paged;
mod pool;
mod prefix;

#[cfg(test)]
mod tests;

pub use contiguous::Contiguous;
pub use growing::Growing;
pub use kind::{KvKind, Room};
pub use paged::Paged;

use std::fmt::Debug;

use xtrain_model::{Eager, KvStore, KvView, Model, Qkv, Result, Rows};
use xtrain_tensor::{Device, Dtype, Tensor};

/// The keys and values of many sequences, for passes without a tape.
///
/// A pass extends layer 0, then layer 1, and so on, with one list of rows. On every layer each row must
/// stand at the position that is due in its sequence. A pass that fails leaves every layer as it was:
/// the rows count once the last layer has them.
pub trait Cache: KvStore<Eager> + Debug {
    /// Which kind this is.
    fn kind(&self) -> KvKind;

    /// What one position of one sequence is made of.
    fn shape(&self) -> &CacheShape;

    /// Positions of `seq` that every layer holds; 0 for a sequence that does not exist.
    fn seq_len(&self, seq: u32) -> usize;

    /// Slots and what is in them.
    fn usage(&self) -> Usage;

    /// Bytes of the tensors that hold keys and values: slots x bytes per token.
    fn bytes(&self) -> usize;

    /// Room for the positions of `seq` below `len`.
    ///
    /// # Errors
    /// [`Error::CacheFull`](xtrain_model::Error::CacheFull) with the first position that has none;
    /// nothing has changed then.
    fn reserve(&mut self, seq: u32, len: usize) -> Result<()>;

    /// The slot of a position that there is room for, in every layer; none where that is known only once its row is
    /// written.
    fn slot(&self, seq: u32, pos: usize) -> Option<u32> {
        let _ = (seq, pos);
        None
    }

    /// Forgets `seq`; its room is free for others.
    fn free(&mut self, seq: u32);

    /// Makes `to` hold the first `len` positions of `from`, shared or copied; what it held is forgotten.
    ///
    /// # Errors
    /// [`Error::CachePosition`](xtrain_model::Error::CachePosition) when `from` holds fewer;
    /// [`Error::CacheFull`](xtrain_model::Error::CacheFull) when `to` does not exist or has no room.
    fn fork(&mut self, from: u32, to: u32, len: usize) -> Result<()>;

    /// Forgets the positions of a sequence from the mark on.
    ///
    /// # Errors
    /// [`Error::CachePosition`](xtrain_model::Error::CachePosition) when it holds fewer.
    fn rewind(&mut self, mark: Snapshot) -> Result<()>;

    /// Keeps the whole pages of `seq`, whose first tokens are `tokens`, for sequences to come, also when
    /// `seq` is freed; they are given up when there is no other room. Only a paged cache can.
    fn insert_prefix(&mut self, seq: u32, tokens: &[u32]) {
        let _ = (seq, tokens);
    }

    /// Makes `seq`, which holds nothing, hold the longest prefix of `tokens` that was remembered; its
    /// length.
    fn match_prefix(&mut self, seq: u32, tokens: &[u32]) -> usize {
        let _ = (seq, tokens);
        0
    }

    /// A mark to [`rewind`](Cache::rewind) to: good until the sequence is rewound below it, then freed
    /// or forked onto.
    fn snapshot(&self, seq: u32) -> Snapshot {
        Snapshot { seq, len: self.seq_len(seq) }
    }

    /// Layers.
    fn num_layers(&self) -> usize {
        self.shape().n_layers
    }

    /// 2 x layers x kv heads x head size x bytes of the dtype.
    fn bytes_per_token(&self) -> usize {
        self.shape().bytes_per_token()
    }
}

impl KvStore<Eager> for Box<dyn Cache> {
    fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> Result<KvView<'_, Tensor>> {
        (**self).extend(layer, k, v, rows)
    }

    fn append_rotated(
        &mut self,
        f: &mut Eager,
        layer: usize,
        new: Qkv<'_, Tensor>,
        rows: &Rows,
    ) -> Result<(Tensor, KvView<'_, Tensor>)> {
        (**self).append_rotated(f, layer, new, rows)
    }
}

/// A length of a sequence to come back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// The sequence.
    pub seq: u32,
    /// Its positions.
    pub len: usize,
}

/// Slots of a cache, each with room for one position in every layer, and the bytes moved into them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Allocated.
    pub slots: usize,
    /// Handed out to sequences or kept for those to come; a shared one counts once.
    pub in_use: usize,
    /// The lengths of all sequences added up; a shared position counts for each.
    pub positions: usize,
    /// Bytes written for new rows: rows x bytes per token.
    pub written: u64,
    /// Bytes copied from slot to slot: growth, forks, copies on write.
    pub copied: u64,
}

/// What one position is made of, and where it lives.
#[derive(Debug, Clone)]
pub struct CacheShape {
    /// Layers.
    pub n_layers: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The model's compute dtype: f32 or bf16.
    pub dtype: Dtype,
    /// Where the values live.
    pub device: Device,
}

impl CacheShape {
    /// The shape that a model's keys and values have.
    pub fn of(model: &Model) -> CacheShape {
        let cfg = model.config();
        CacheShape {
            n_layers: cfg.n_layers,
            n_kv_heads: cfg.n_kv_heads,
            head_dim: cfg.head_dim,
            dtype: model.compute(),
            device: model.device().clone(),
        }
    }

    /// 2 x layers x kv heads x head size x bytes of the dtype.
    pub fn bytes_per_token(&self) -> usize {
        2 * self.n_layers * self.width() * self.dtype.bytes()
    }

    /// Values of one key in one layer.
    pub(crate) fn width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}
