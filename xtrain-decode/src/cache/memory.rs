//! Where a cache has its keys and values.
use std::io;
use std::sync::Arc;

use xtrain_model::Model;
use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};

use super::kind::{KvKind, Room};
use super::layer_offload::LayerOffload;
use super::shape::CacheShape;
use crate::error::Result;
use crate::storage::Storage;

/// Where a cache has its keys and values: in the tensors of an engine that has ended, so that the next one does not
/// allocate them again; with [`KvMemory::offloading`] some layers are offloaded.
///
/// It holds no sequence and no prefix: the slots of the next engine are free, and a slot is written before it is
/// read. The next engine may have other weights. Memory of another shape, dtype or device is not used.
#[derive(Debug, Default)]
pub struct KvMemory {
    layers: Vec<[Tensor; 2]>,
    /// `None`: all layers stay in the memory of the device.
    offload: Option<LayerOffload>,
}

impl KvMemory {
    /// No memory yet, for a contiguous, paged or int8 cache that offloads layers. The cache has all its slots from the
    /// start.
    pub fn offloading(offload: LayerOffload) -> KvMemory {
        KvMemory { layers: Vec::new(), offload: Some(offload) }
    }

    /// Whether layers are offloaded if they do not fit.
    pub(super) fn is_offloading(&self) -> bool {
        self.offload.is_some()
    }

    /// Checks that a cache of this kind can be in this memory.
    ///
    /// # Errors
    /// [`Error::Option`](crate::Error::Option) if it cannot offload layers, or has no room for them.
    pub(crate) fn check(&self, kv: KvKind, shape: &CacheShape, room: Room) -> Result<()> {
        self.offload.as_ref().map_or(Ok(()), |offload| offload.check(kv, shape, room))
    }

    /// Number of layers that stay in the memory of the device.
    pub(super) fn resident_layers(&self, shape: &CacheShape, n_slots: usize) -> usize {
        self.offload.as_ref().map_or(shape.n_layers, |offload| offload.resident(shape, n_slots))
    }

    /// Where the layers after the first `n_resident` are. `None`: there are none.
    pub(super) fn storage(
        &self,
        shape: &CacheShape,
        n_resident: usize,
        n_slots: usize,
    ) -> Option<io::Result<Arc<dyn Storage>>> {
        let bytes = (shape.n_layers - n_resident) * n_slots * shape.layer_bytes_per_token();
        self.offload.as_ref().filter(|_| n_resident < shape.n_layers).map(|offload| offload.storage(bytes))
    }

    /// Takes the tensors, if there are `n_layers` layers whose rows have this shape, with at least `n_slots` slots, and
    /// their number of slots. A cache that offloads layers has no more slots than it needs.
    pub(super) fn take_layers(
        &mut self,
        shape: &CacheShape,
        n_layers: usize,
        n_slots: usize,
    ) -> Option<(Vec<[Tensor; 2]>, usize)> {
        let layers = std::mem::take(&mut self.layers);
        let held = layers.first()?[0].shape()[0];
        let (len, dtype) = shape.stored_head();
        let want = [held, shape.n_kv_heads, len];
        let fits = |t: &Tensor| t.shape() == want && t.dtype() == dtype && t.device().is(&shape.device);
        let all_fit = layers.len() == n_layers && layers.iter().flatten().all(fits);
        let exact = self.is_offloading() && !faults::on(Fault::SlotsOfLargerCacheKept);
        let is_large_enough = if exact { held == n_slots } else { held >= n_slots };
        (all_fit && is_large_enough).then_some((layers, held))
    }

    /// The same memory with these tensors.
    pub(super) fn with_layers(self, layers: Vec<[Tensor; 2]>) -> KvMemory {
        KvMemory { layers, ..self }
    }

    /// Bytes that a cache of this kind allocates in the memory of the device, if its sequences are as long as they may
    /// be; those of earlier tensors included. On the CPU without those in a file or in host memory.
    pub fn allocated_bytes(&self, kv: KvKind, model: &Model, room: Room) -> u64 {
        match self.offload.as_ref().filter(|_| kv.can_offload_layers()) {
            Some(offload) => offload.allocated_bytes(kv, model, room),
            None => kv.allocated_bytes(model, room),
        }
    }

    /// Bytes of host memory in addition to [`KvMemory::allocated_bytes`]: offloaded layers that are not in a file and,
    /// with a GPU, the layer that is being read.
    pub fn host_bytes(&self, kv: KvKind, model: &Model, room: Room) -> u64 {
        let offload = self.offload.as_ref().filter(|_| kv.can_offload_layers());
        offload.map_or(0, |offload| offload.host_bytes(kv, model, room))
    }

    /// Bytes of the tensors.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flatten().map(|t| t.len() * t.dtype().bytes()).sum()
    }

    /// Fills the keys and values with NaN.
    #[cfg(test)]
    pub(crate) fn poison(&mut self) {
        for t in self.layers.iter_mut().flatten() {
            match t.dtype() {
                xtrain_tensor::Dtype::BF16 => t.data_mut::<half::bf16>().unwrap().fill(half::bf16::NAN),
                xtrain_tensor::Dtype::U32 => t.data_mut::<u32>().unwrap().fill(f32::NAN.to_bits()),
                _ => t.data_mut::<f32>().unwrap().fill(f32::NAN),
            }
        }
    }
}
