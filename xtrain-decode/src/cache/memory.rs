//! The memory of a cache without its contents, for the cache of a later engine.
use xtrain_tensor::Tensor;

use super::shape::CacheShape;

/// The key and value tensors of an engine that has ended, so that the next one does not allocate them again.
///
/// It holds no sequence and no prefix: the slots of the next engine are free, and a slot is written before it is
/// read. The next engine may have other weights. Memory of another shape, dtype or device is not used.
#[derive(Debug, Default)]
pub struct KvMemory {
    layers: Vec<[Tensor; 2]>,
}

impl KvMemory {
    pub(super) fn new(layers: Vec<[Tensor; 2]>) -> KvMemory {
        KvMemory { layers }
    }

    /// The tensors, if their rows have this shape, and their number of slots.
    pub(super) fn layers_of(self, shape: &CacheShape) -> Option<(Vec<[Tensor; 2]>, usize)> {
        let n_slots = self.layers.first()?[0].shape()[0];
        let (len, dtype) = shape.stored_head();
        let want = [n_slots, shape.n_kv_heads, len];
        let fits = |t: &Tensor| t.shape() == want && t.dtype() == dtype && t.device().is(&shape.device);
        let all_fit = self.layers.len() == shape.n_layers && self.layers.iter().flatten().all(fits);
        all_fit.then_some((self.layers, n_slots))
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
