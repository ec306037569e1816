//! How much of a cache stays in the memory of the device, and where the rest of it is.
use std::io;
use std::path::Path;
use std::sync::Arc;

use xtrain_model::Model;
use xtrain_tensor::Device;
use xtrain_tensor::faults::{self, Fault};

use super::kind::{KvKind, Room};
use super::layer_file::checksum_bytes;
use super::shape::CacheShape;
use crate::error::{Error, Result};
use crate::storage::{HostMemory, Storage};

/// Layer-wise offload, for caches larger than the memory of the device: the first layers stay there, the others share
/// the memory of two. A layer is loaded when its attention runs, while the next one is read. See
/// [`KvMemory::offloading`](crate::KvMemory::offloading).
///
/// Completions are bit-identical. Every pass reads the offloaded layers once.
#[derive(Debug)]
pub struct LayerOffload {
    resident: usize,
    limit: usize,
    /// `None`: host memory.
    file: Option<Arc<dyn Storage>>,
}

impl LayerOffload {
    /// At most `resident` bytes of keys and values stay in the memory of the device, at most `limit` bytes are in host
    /// memory. On the CPU this saves nothing.
    pub fn in_memory(resident: usize, limit: usize) -> LayerOffload {
        LayerOffload { resident, limit, file: None }
    }

    /// At most `resident` bytes of keys and values stay in the memory of the device, at most `limit` bytes are in a file
    /// in the directory `dir`. It has no name, so a process that is killed leaves nothing. On a GPU, one layer is also
    /// in host memory.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn in_directory(dir: &Path, resident: usize, limit: usize) -> io::Result<LayerOffload> {
        Ok(LayerOffload::in_storage(Arc::new(tempfile::tempfile_in(dir)?), resident, limit))
    }

    pub(crate) fn in_storage(storage: Arc<dyn Storage>, resident: usize, limit: usize) -> LayerOffload {
        LayerOffload { resident, limit, file: Some(storage) }
    }

    /// The least `resident` with which a cache of this kind can offload its layers: two of them. All, if there are no
    /// more.
    pub fn least_resident(kv: KvKind, model: &Model, room: Room) -> usize {
        least(&CacheShape::of(model).stored_as(kv.dtype()), slots(kv, room))
    }

    /// Number of layers that stay in the memory of the device besides two that the others share: all, if they fit.
    /// `None`: not even two fit.
    fn resident_layers(&self, shape: &CacheShape, n_slots: usize) -> Option<usize> {
        let layer = n_slots.saturating_mul(shape.layer_bytes_per_token()).max(1);
        if layer.saturating_mul(shape.n_layers) <= self.resident {
            return Some(shape.n_layers);
        }
        let for_layers = self.resident.saturating_sub(shape.n_layers * checksum_bytes(n_slots));
        (for_layers / layer).checked_sub(2)
    }

    /// As `resident_layers`, for a checked cache: none if two do not fit.
    pub(super) fn resident(&self, shape: &CacheShape, n_slots: usize) -> usize {
        self.resident_layers(shape, n_slots).unwrap_or(0)
    }

    /// A place for `bytes` bytes.
    ///
    /// # Errors
    /// There is no host memory for them.
    pub(super) fn storage(&self, bytes: usize) -> io::Result<Arc<dyn Storage>> {
        match &self.file {
            Some(file) => Ok(Arc::clone(file)),
            None => Ok(Arc::new(HostMemory::new(bytes)?)),
        }
    }

    /// Bytes that a cache allocates in the memory of the device, with its checksums.
    pub(super) fn allocated_bytes(&self, kv: KvKind, model: &Model, room: Room) -> u64 {
        let (shape, n_slots) = (CacheShape::of(model).stored_as(kv.dtype()), slots(kv, room));
        let layer = shape.pool_bytes(n_slots as u64, &shape.device).saturating_mul(2);
        let resident = self.resident(&shape, n_slots);
        let off = (shape.n_layers - resident) as u64;
        let buffers = if off > 0 { 2 } else { 0 };
        layer.saturating_mul(resident as u64 + buffers).saturating_add(off * checksum_bytes(n_slots) as u64)
    }

    /// Bytes of host memory: the offloaded layers, if they are not in a file, and, with a GPU, the layer that is being
    /// read.
    pub(super) fn host_bytes(&self, kv: KvKind, model: &Model, room: Room) -> u64 {
        let (shape, n_slots) = (CacheShape::of(model).stored_as(kv.dtype()), slots(kv, room));
        let off = shape.n_layers - self.resident(&shape, n_slots);
        let layer = n_slots.saturating_mul(shape.layer_bytes_per_token()) as u64;
        let kept = if self.file.is_none() { layer.saturating_mul(off as u64) } else { 0 };
        let read = match model.device() {
            Device::Gpu(_) if off > 0 && !faults::on(Fault::ReadLayerNotCounted) => {
                2 * shape.pool_bytes(n_slots as u64, &Device::cpu())
            }
            _ => 0,
        };
        kept.saturating_add(read)
    }

    /// Checks that a cache of this kind can offload its layers, and that they fit.
    ///
    /// # Errors
    /// [`Error::Option`] for another kind, or a limit that is too small: the bytes that are needed.
    pub(crate) fn check(&self, kv: KvKind, shape: &CacheShape, room: Room) -> Result<()> {
        if !kv.can_offload_layers() {
            let want = "contiguous, paged or int8, to offload layers";
            return Err(Error::option("kv", want, kv));
        }
        let (n_slots, limit) = (slots(kv, room), self.limit);
        let layer = n_slots.saturating_mul(shape.layer_bytes_per_token());
        let Some(resident) = self.resident_layers(shape, n_slots) else {
            let (has, least) = (self.resident, least(shape, n_slots));
            let got = format!("{has} bytes; with {n_slots} positions they take {least} bytes");
            return Err(Error::option("kv_resident", "room for two layers", got));
        };
        let off = layer.saturating_mul(shape.n_layers - resident);
        if off > limit {
            let n = shape.n_layers - resident;
            let got = format!("{limit} bytes; {n} layers of {n_slots} positions take {off} bytes");
            let want = "room for the layers that are offloaded";
            return Err(Error::option("offload_limit", want, got));
        }
        Ok(())
    }
}

/// Bytes of two layers and of the checksums, or of all layers.
fn least(shape: &CacheShape, n_slots: usize) -> usize {
    let layer = n_slots.saturating_mul(shape.layer_bytes_per_token());
    match shape.n_layers {
        n @ ..=2 => layer.saturating_mul(n),
        n => layer.saturating_mul(2).saturating_add(n * checksum_bytes(n_slots)),
    }
}

/// Slots of the cache, which has all of them from the start.
fn slots(kv: KvKind, room: Room) -> usize {
    usize::try_from(kv.allocated_slots(room)).unwrap_or(usize::MAX)
}
