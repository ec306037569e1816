//! The tensors of the layers: all in the memory of the device, or the last ones offloaded.
use xtrain_model::Result;
use xtrain_tensor::Tensor;
use xtrain_tensor::ops::{self, SlotRange};

use super::memory::KvMemory;
use super::offloaded_layers::{OffloadedLayers, failed};
use super::shape::CacheShape;

/// A key tensor and a value tensor `[S, nkv, hd]` for each layer. A layer is loaded before it is read or changed, and
/// stored after it is changed.
#[derive(Debug)]
pub(super) struct Layers {
    /// The layers that stay in the memory of the device: the first ones.
    resident: Vec<[Tensor; 2]>,
    /// The others. `None`: there are none.
    offloaded: Option<OffloadedLayers>,
    /// Given back at the end, without the tensors.
    memory: KvMemory,
}

impl Layers {
    /// At least `n_slots` slots in every layer, in `memory` if it is large enough, otherwise zeros, and their number.
    ///
    /// # Errors
    /// If the device has no memory for them, or the operating system grants no thread for offloaded layers.
    pub(super) fn new(shape: &CacheShape, n_slots: usize, mut memory: KvMemory) -> Result<(Layers, usize)> {
        let n_resident = memory.resident_layers(shape, n_slots);
        let (resident, n_slots) = if let Some(held) = memory.take_layers(shape, n_resident, n_slots) {
            held
        } else {
            let zeros = |_| Ok([shape.zeros(n_slots)?, shape.zeros(n_slots)?]);
            ((0..n_resident).map(zeros).collect::<Result<_>>()?, n_slots)
        };
        let offloaded = match memory.storage(shape, n_resident, n_slots) {
            None => None,
            Some(storage) => {
                let layers = n_resident..shape.n_layers;
                let storage = storage.map_err(|error| failed(n_resident, &error))?;
                Some(OffloadedLayers::new(shape.clone(), layers, n_slots, storage)?)
            }
        };
        Ok((Layers { resident, offloaded, memory }, n_slots))
    }

    /// Bytes in the memory of the device.
    pub(super) fn bytes(&self) -> usize {
        let resident = self.resident.iter().flatten().map(|t| t.len() * t.dtype().bytes());
        resident.sum::<usize>() + self.offloaded.as_ref().map_or(0, OffloadedLayers::bytes)
    }

    /// Makes a layer readable and writable.
    ///
    /// # Errors
    /// If it is offloaded and cannot be read.
    pub(super) fn load(&mut self, layer: usize) -> Result<&mut [Tensor; 2]> {
        match &mut self.offloaded {
            Some(offloaded) if layer >= self.resident.len() => offloaded.load(layer),
            _ => Ok(&mut self.resident[layer]),
        }
    }

    /// A resident layer, or the layer that was loaded last.
    pub(super) fn loaded(&self, layer: usize) -> &[Tensor; 2] {
        match &self.offloaded {
            Some(offloaded) if layer >= self.resident.len() => offloaded.loaded(layer),
            _ => &self.resident[layer],
        }
    }

    /// Keeps the changes of `slots` in `layer`, which is resident or was loaded last.
    ///
    /// # Errors
    /// If it is offloaded and cannot be written.
    pub(super) fn store(&mut self, layer: usize, slots: impl Iterator<Item = usize>) -> Result<()> {
        match &mut self.offloaded {
            Some(offloaded) if layer >= self.resident.len() => offloaded.store(layer, slots),
            _ => Ok(()),
        }
    }

    /// Grows every layer to `n_slots` slots. The first `kept` slots keep their values. Offloaded layers have all slots
    /// that they may have from the start.
    ///
    /// # Errors
    /// If the device has no memory for them.
    pub(super) fn grow(&mut self, shape: &CacheShape, kept: usize, n_slots: usize) -> Result<()> {
        let kept = SlotRange { from: 0, to: 0, len: kept };
        for t in self.resident.iter_mut().flatten() {
            let mut grown = shape.zeros(n_slots)?;
            ops::copy_slots(&mut grown, t, &[kept])?;
            *t = grown;
        }
        Ok(())
    }

    pub(super) fn into_memory(self) -> KvMemory {
        self.memory.with_layers(self.resident)
    }
}
