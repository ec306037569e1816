//! Layers outside the memory of the device, which share the memory of two.
use std::io;
use std::ops::Range;
use std::sync::Arc;

use xtrain_model::{Error, Result};
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, SlotRange};
use xtrain_tensor::{Device, Tensor};

use super::layer_file::{BLOCK, BLOCKS_AT_A_TIME, LayerFile};
use super::layer_reader::{HostLayer, LayerReader};
use super::shape::CacheShape;
use crate::storage::Storage;
use crate::tensor_bytes::{bytes, bytes_mut};

/// One layer is loaded, and the next one is being read. Every change is made to the loaded layer and then written to
/// the file, so what is read is never stale.
#[derive(Debug)]
pub(super) struct OffloadedLayers {
    shape: CacheShape,
    layers: Range<usize>,
    file: LayerFile,
    reader: LayerReader,
    /// The layer in `kv`. `None`: none yet.
    loaded: Option<usize>,
    /// On the device.
    kv: [Tensor; 2],
}

impl OffloadedLayers {
    /// `layers` with `n_slots` slots of zeros.
    ///
    /// # Errors
    /// If the device has no memory for two layers, or the operating system grants no thread.
    pub(super) fn new(
        shape: CacheShape,
        layers: Range<usize>,
        n_slots: usize,
        storage: Arc<dyn Storage>,
    ) -> Result<OffloadedLayers> {
        let zeros = |shape: &CacheShape| Ok::<_, Error>([shape.zeros(n_slots)?, shape.zeros(n_slots)?]);
        let in_host_memory = match &shape.device {
            Device::Gpu(_) => CacheShape { device: Device::cpu(), ..shape.clone() },
            _ => shape.clone(),
        };
        let file = LayerFile::new(storage, layers.len(), n_slots, shape.layer_bytes_per_token() / 2);
        let reader = LayerReader::new(zeros(&in_host_memory)?);
        let reader = reader.map_err(|error| failed(layers.start, &error))?;
        let kv = zeros(&shape)?;
        Ok(OffloadedLayers { shape, layers, file, reader, loaded: None, kv })
    }

    /// Bytes in the memory of the device: two layers.
    pub(super) fn bytes(&self) -> usize {
        let layers = if faults::on(Fault::LayerBuffersNotCounted) { 1 } else { 2 };
        layers * self.kv.iter().map(|t| t.len() * t.dtype().bytes()).sum::<usize>()
    }

    /// The loaded layer, `layer`.
    pub(super) fn loaded(&self, layer: usize) -> &[Tensor; 2] {
        debug_assert_eq!(self.loaded, Some(layer), "the layer that was loaded last");
        &self.kv
    }

    /// Loads a layer, and begins to read the one after it.
    ///
    /// # Errors
    /// [`Error::OffloadedLayer`] if the file cannot be read or has other bytes than were written.
    pub(super) fn load(&mut self, layer: usize) -> Result<&mut [Tensor; 2]> {
        if self.loaded != Some(layer) {
            let mut read = self.reader.take();
            let is_read = match read.layer {
                Some(read) => read == layer || faults::on(Fault::PrefetchedLayerTaken),
                None => false,
            };
            if !is_read && let Err(error) = self.file.read(layer - self.layers.start).run(&mut read.kv) {
                self.reader.put(HostLayer { layer: None, ..read });
                return Err(failed(layer, &error));
            }
            self.take(layer, read)?;
        }
        Ok(&mut self.kv)
    }

    /// Makes what was `read` the loaded layer, and begins to read the next one.
    fn take(&mut self, layer: usize, mut read: HostLayer) -> Result<()> {
        if faults::on(Fault::OffloadedLayerShifted) {
            let row = self.shape.layer_bytes_per_token() / 2;
            for tensor in &mut read.kv {
                bytes_mut(tensor).expect("the memory of a read layer is of the host").rotate_right(row);
            }
        }
        if let Device::Gpu(_) = &self.shape.device {
            self.loaded = None;
            match upload(&read.kv, &self.shape.device) {
                Ok(kv) => self.kv = kv,
                // the layer is read: the next load uploads it
                Err(error) => {
                    self.reader.put(HostLayer { layer: Some(layer), ..read });
                    return Err(error);
                }
            }
        } else {
            std::mem::swap(&mut self.kv, &mut read.kv);
        }
        self.loaded = Some(layer);
        let next = if layer + 1 < self.layers.end { layer + 1 } else { self.layers.start };
        self.reader.start(self.file.read(next - self.layers.start), HostLayer { layer: Some(next), ..read });
        Ok(())
    }

    /// Writes the blocks of `slots` of the loaded layer, `layer`, which have changed, to the file.
    ///
    /// # Errors
    /// [`Error::OffloadedLayer`] if the file cannot be written.
    pub(super) fn store(&mut self, layer: usize, slots: impl Iterator<Item = usize>) -> Result<()> {
        debug_assert_eq!(self.loaded, Some(layer), "the layer that was loaded last");
        if faults::on(Fault::OffloadedRowsNotWritten) {
            return Ok(());
        }
        let mut blocks: Vec<usize> = slots.map(|slot| slot / BLOCK).collect();
        let row_bytes = self.shape.layer_bytes_per_token() / 2;
        blocks.sort_unstable();
        blocks.dedup();
        for blocks in blocks.chunks(BLOCKS_AT_A_TIME) {
            let mut n = 0;
            let ranges = blocks.iter().map(|&block| {
                let slots = self.file.slots(block);
                n += slots.len();
                SlotRange { from: slots.start, to: n - slots.len(), len: slots.len() }
            });
            let ranges: Vec<SlotRange> = ranges.collect();
            for (which, pool) in self.kv.iter().enumerate() {
                let mut rows = self.shape.zeros(n)?;
                ops::copy_slots(&mut rows, pool, &ranges)?;
                let rows = rows.to_host()?;
                let bytes = bytes(&rows)?;
                for (&block, &SlotRange { to, len, .. }) in blocks.iter().zip(&ranges) {
                    let bytes = &bytes[to * row_bytes..(to + len) * row_bytes];
                    let written = self.file.write(layer - self.layers.start, which, block, bytes);
                    written.map_err(|error| failed(layer, &error))?;
                }
            }
        }
        Ok(())
    }
}

fn upload([k, v]: &[Tensor; 2], device: &Device) -> Result<[Tensor; 2]> {
    Ok([k.to_device(device)?, v.to_device(device)?])
}

pub(super) fn failed(layer: usize, error: &io::Error) -> Error {
    Error::OffloadedLayer { layer, what: error.to_string() }
}
