//! KV caches: one trait, five kinds, one set of position checks.
//!
//! Read [`Growing`] first. It is the simplest cache: each sequence has one key tensor and one value tensor per layer,
//! and new rows are concatenated to them. [`Contiguous`] writes into preallocated slots. [`Paged`], the default,
//! hands out slots in pages, shares them between completions of one prompt, and keeps prefixes.
//!
//! They give bitwise equal results. Two kinds are lossy, and have the bits of definitions of their own: an int8 cache is
//! a [`Paged`] cache that stores codes and scales; [`Sinks`] keeps only the first and the last positions. `tests.rs` is
//! the conformance suite that every kind passes.
//!
//! Contiguous and paged caches may be larger than the memory of the device: see [`LayerOffload`].
mod contiguous;
mod estimate;
mod growing;
mod interface;
mod kind;
mod kv_rows;
mod kv_snapshot;
mod layer_file;
mod layer_offload;
mod layer_reader;
mod layers;
mod ledger;
mod memory;
mod offloaded_layers;
mod paged;
mod pool;
mod prefix;
mod rotate;
mod shape;
mod sink_lists;
mod sinks;

#[cfg(test)]
mod tests;

pub use contiguous::Contiguous;
pub use growing::Growing;
pub use interface::{Cache, Snapshot, Usage};
pub use kind::{KvDtype, KvKind, Room};
pub use kv_rows::KvRows;
pub use kv_snapshot::KvSnapshot;
pub use layer_offload::LayerOffload;
pub use memory::KvMemory;
pub use paged::Paged;
pub use shape::CacheShape;
pub use sinks::Sinks;

pub(crate) use rotate::append_separately;

use xtrain_model::{Model, Result};

impl KvKind {
    /// An empty cache of this kind for `model`, in `memory` if it has the right shape. `None` for [`KvKind::Off`]. A
    /// page size of 0 counts as 1.
    ///
    /// # Errors
    /// If the device has no memory for it.
    pub fn cache(self, model: &Model, room: Room, memory: KvMemory) -> Result<Option<Box<dyn Cache>>> {
        let shape = CacheShape::of(model).stored_as(self.dtype());
        Ok(match self {
            KvKind::Off => None,
            KvKind::Growing => Some(Box::new(Growing::new(shape, room))),
            KvKind::Contiguous => Some(Box::new(Contiguous::new(shape, room, memory)?)),
            KvKind::Paged { page } | KvKind::Int8 { page } => {
                Some(Box::new(Paged::new(shape, room, page.max(1), memory)?))
            }
            KvKind::Sinks { sinks, window } => {
                Some(Box::new(Sinks::new(shape, room, [sinks, window], memory)?))
            }
        })
    }
}
